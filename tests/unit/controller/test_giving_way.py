"""Runs that make room for others: warned, stopped, and going on when it is their turn again."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from tests.unit.controller.stage import Stage
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Node
from windlass.db.database import Database
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.scheduling.core import index
from windlass.scheduling.core.types import Policy, Project
from windlass.scheduling.rules import Rules
from windlass.testing.clock import FakeClock
from windlass.testing.fake_engine import FakeCluster

WHOLE = {"gpus": 8, "cpus": 1}


@pytest.fixture
def make(database: Database, service: RunService, seal: Seal, clock: FakeClock) -> Any:
    def stage(nodes: int = 1, *, projects: tuple[Project, ...] = (), **policy: Any) -> Stage:
        rules = Rules(
            policy=Policy(rank=index.rank, **policy), projects={project.name: project for project in projects}
        )
        found = [Node(engine="fake", name=f"n{at}", cpus=64, memory_bytes=10**12, gpus=8) for at in range(nodes)]
        return Stage(database, service, seal, clock, cluster=FakeCluster(nodes=tuple(found)), rules=rules)

    return stage


def start(stage: Stage, **spec: Any) -> str:
    run_id = stage.submit(**{"resources": WHOLE, **spec})
    stage.controller.tick()
    stage.controller.tick()
    assert stage.state(run_id) == "running"
    return run_id


def events(stage: Stage, run_id: str, kind: str) -> list[str]:
    return [event.message for event in stage.service.events(run_id, after=0).events if event.kind == kind]


def test_a_higher_priority_stops_a_lower_one_which_goes_on_later(make: Any) -> None:
    stage = make()
    low = start(stage, priority="low")
    stage.pass_time(400)
    high = stage.submit(resources=WHOLE, priority="high")
    stage.pass_time()  # decided, and on record
    assert stage.state(low) == "running"
    stage.pass_time()  # warned, and gone
    stage.pass_time()
    stage.pass_time()
    assert (stage.state(low), stage.state(high)) == ("recovering", "running")
    [told] = events(stage, low, "preempting")
    assert told == f"it makes room for run {high}, which has a higher priority; attempt 1 is stopped with 10 s of grace"
    stage.engine.finish(f"{high}.1", Exit(reason=ExitReason.COMPLETED))
    stage.pass_time()
    stage.pass_time()
    assert stage.state(low) == "running"
    with stage.db.read() as tx:
        assert tx.execute(text("SELECT preemptions FROM runs WHERE id = :id"), {"id": low}).scalar() == 1


def test_nobody_is_stopped_before_its_minimum_is_over_nor_one_that_is_not_to_be(make: Any) -> None:
    stage = make(2)
    fresh, firm = start(stage, priority="low"), start(stage, priority="low", preemptible=False)
    high = stage.submit(resources=WHOLE, priority="high")
    for _ in range(4):
        stage.pass_time(60)
    assert [stage.state(run_id) for run_id in (fresh, firm, high)] == ["running", "running", "queued"]
    for _ in range(5):
        stage.pass_time(60)
    assert [stage.state(run_id) for run_id in (fresh, firm, high)] == ["recovering", "running", "running"]


def test_what_was_decided_outlives_the_controller(make: Any) -> None:
    stage = make()
    low = start(stage, priority="low")
    stage.pass_time(400)
    high = stage.submit(resources=WHOLE, priority="high")
    stage.pass_time()  # on record, and the controller dies before it tells anybody
    stage.controller = stage.new_controller()
    stage.controller.activate()
    stage.clock.advance(60)
    assert stage.controller.activate()
    for _ in range(3):
        stage.pass_time()
    assert (stage.state(low), stage.state(high)) == ("recovering", "running")


def test_who_is_above_its_quota_gives_back_what_it_borrowed(make: Any) -> None:
    owner = Project(name="owner", quota={"gpu": 8})
    stage = make(2, projects=(owner,))
    borrowing = [start(stage, project="other") for _ in range(2)]
    stage.pass_time(400)
    mine = stage.submit(resources=WHOLE, project="owner")
    for _ in range(4):
        stage.pass_time()
    assert stage.state(mine) == "running"
    assert sorted(stage.state(run_id) for run_id in borrowing) == ["recovering", "running"]


def test_the_one_that_saved_last_is_stopped(make: Any) -> None:
    stage = make(2)
    unsaved, saved = start(stage, priority="low"), start(stage, priority="low")
    stage.pass_time(4000)
    with stage.db.write() as tx:
        set_saved = text("UPDATE attempts SET saved_at = :at WHERE run_id = :id")
        tx.execute(set_saved, {"at": stage.clock.now() - 10, "id": saved})
    high = stage.submit(resources=WHOLE, priority="high")
    for _ in range(4):
        stage.pass_time()
    assert [stage.state(run_id) for run_id in (unsaved, saved, high)] == ["running", "recovering", "running"]


def test_an_elastic_run_becomes_smaller_and_goes_on_at_once(make: Any) -> None:
    stage = make(3)
    wide = start(stage, elastic={"min_nodes": 1, "max_nodes": 3, "grow_every": None}, priority="low")
    assert len(stage.service.attempts(wide).attempts[-1].nodes) == 3
    stage.pass_time(400)
    with stage.db.write() as tx:
        tx.execute(text("UPDATE attempts SET saved_at = :at"), {"at": stage.clock.now()})
    other = stage.submit(resources=WHOLE)
    for _ in range(4):
        stage.pass_time()
    assert (stage.state(wide), stage.state(other)) == ("running", "running")
    assert len(stage.service.attempts(wide).attempts[-1].nodes) == 2
    [told] = events(stage, wide, "preempting")
    assert told.startswith(f"it goes on with 2 nodes: run {other} needs the others;")
    with stage.db.read() as tx:
        assert tx.execute(text("SELECT preemptions FROM runs WHERE id = :id"), {"id": wide}).scalar() == 1


def test_what_broke_does_not_lose_its_turn(make: Any) -> None:
    stage = make()
    long = start(stage)
    stage.pass_time(5000)
    waits = stage.submit(resources=WHOLE)
    stage.engine.finish(f"{long}.1", Exit(reason=ExitReason.LOST, message="its node is gone"))
    stage.controller.tick()
    stage.pass_time(10)
    stage.pass_time()
    assert (stage.state(long), stage.state(waits)) == ("running", "queued")


def test_a_run_that_is_cancelled_while_it_gives_way_is_cancelled(make: Any) -> None:
    stage = make()
    low = start(stage, command="stubborn", priority="low")
    stage.pass_time(400)
    stage.submit(resources=WHOLE, priority="high")
    stage.pass_time()
    stage.service.cancel(low, grace_s=None)
    for _ in range(3):
        stage.pass_time(30)
    assert stage.state(low) == "cancelled"


def test_usage_of_projects_is_kept(make: Any) -> None:
    stage = make(2, half_life_s=3600.0)
    start(stage, project="busy")
    for _ in range(60):
        stage.pass_time(60)
    with stage.db.read() as tx:
        rows = {row.project: row.usage for row in tx.execute(text("SELECT project, usage FROM project_usage"))}
    # Half of the cluster for one half-life: half of what it would be after for ever.
    assert rows["busy"] == pytest.approx(0.5 * 0.5 * 3600 / 0.6931, rel=0.05)
