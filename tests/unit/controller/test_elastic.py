"""Elastic runs: going on with fewer nodes, and when one is stopped to go on with more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from tests.unit.controller.stage import Stage
from windlass.checkpoints.store import record_notes
from windlass.controller.elastic import SETTLED_S, NarrowRun, decide_growth
from windlass.controller.lease import leases
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Node, NodeShare, Placement, Resources
from windlass.scheduling.types import Aside, ClusterSnapshot, WaitingRun
from windlass.tracking.saves import read_note

ELASTIC = {"min_nodes": 1, "max_nodes": 4, "grow_every": 60}


def nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(engine="fake", name=f"n{number}", cpus=1, memory_bytes=10**9) for number in range(count))


def placement(*names: str) -> Placement:
    return Placement(engine="fake", shares=tuple(NodeShare(node=name, cpus=1, memory_bytes=0) for name in names))


def narrow(run_id: str = "r", *held: str, grow_every_s: float = 600) -> NarrowRun:
    return NarrowRun(
        run_id=run_id,
        attempt_id=f"{run_id}.1",
        placement=placement(*(held or ("n0", "n1"))),
        resources=Resources(),
        most_nodes=4,
        grow_every_s=grow_every_s,
    )


def snapshot(count: int, *runs: NarrowRun, waiting: tuple[WaitingRun, ...] = ()) -> ClusterSnapshot:
    return ClusterSnapshot(nodes=nodes(count), held={run.run_id: run.placement for run in runs}, waiting=waiting)


# ---- the decision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "grown"), [(2, None), (3, 3), (4, 4), (9, 4)])
def test_it_grows_to_what_there_is_once_that_has_settled(count: int, grown: int | None) -> None:
    run = narrow()
    there = snapshot(count, run)
    first = decide_growth(there, [run], {}, now=100)
    assert first.nodes == {}
    soon = decide_growth(there, [run], first.since, now=100 + SETTLED_S - 1)
    assert soon.nodes == {}
    then = decide_growth(there, [run], soon.since, now=100 + SETTLED_S)
    assert then.nodes == ({} if grown is None else {"r.1": grown})


def test_room_that_comes_and_goes_begins_anew() -> None:
    run = narrow()
    since = decide_growth(snapshot(3, run), [run], {}, now=0).since
    since = decide_growth(snapshot(2, run), [run], since, now=20).since
    assert since == {}
    since = decide_growth(snapshot(3, run), [run], since, now=25).since
    assert decide_growth(snapshot(3, run), [run], since, now=SETTLED_S + 1).nodes == {}


def test_runs_that_wait_come_first() -> None:
    run = narrow()
    queued = WaitingRun(run_id="q", name="q", resources=Resources(nodes=9), priority=0, queued_at=0)
    since = {"r.1": -1000.0}
    assert decide_growth(snapshot(4, run, waiting=(queued,)), [run], since, now=0).nodes == {}
    elsewhere = replace(queued, engines=frozenset({"other"}))
    assert decide_growth(snapshot(4, run, waiting=(elsewhere,)), [run], since, now=0).nodes == {"r.1": 4}


def test_one_at_a_time() -> None:
    runs = [narrow("a", "n0"), narrow("b", "n1")]
    grown = decide_growth(snapshot(4, *runs), runs, {"a.1": -1000.0, "b.1": -1000.0}, now=0)
    assert grown.nodes == {"a.1": 3}


def test_nodes_that_are_set_aside_are_no_room() -> None:
    run = narrow()
    broken = {("fake", "n2"): Aside(reason="ECC", since=0, until=None)}
    there = replace(snapshot(3, run), aside=broken)
    assert decide_growth(there, [run], {"r.1": -1000.0}, now=0).nodes == {}


# ---- with a controller -----------------------------------------------------------------------------------------------


def save(stage: Stage, run_id: str) -> None:
    note = read_note(
        {"folder": "/ckpt/step-5", "tier": "folder", "created_at": stage.clock.now(), "size_bytes": 1, "files": 1,
         "world_size": 1, "plan": "", "format": "dcp", "reason": "interval", "metrics": {}},
        at=stage.clock.now(), step=5,
    )  # fmt: skip
    with stage.db.write() as tx:
        record_notes(tx, run_id, f"spool:{run_id}.1:0", [note])


def nodes_of(stage: Stage, run_id: str) -> int:
    return len(stage.service.attempts(run_id).attempts[-1].nodes)


def started(stage: Stage, count: int = 4, **spec: object) -> str:
    stage.cluster.nodes = nodes(count)
    stage.pass_time(60)
    run_id = stage.submit(**{"elastic": ELASTIC, **spec})
    stage.pass_time()
    stage.pass_time()
    assert stage.state(run_id) == "running"
    return run_id


def test_a_lost_node_costs_a_node(stage: Stage) -> None:
    run_id = started(stage)
    assert nodes_of(stage, run_id) == 4
    stage.cluster.nodes = nodes(2)
    stage.engine.finish(f"{run_id}.1", Exit(reason=ExitReason.LOST, message="node n3 is gone"))
    stage.pass_time()
    stage.pass_time(10)
    stage.pass_time()
    assert (stage.state(run_id), nodes_of(stage, run_id)) == ("running", 2)
    assert "it is on 2 of up to 4 nodes; it grows when more have been free" in stage.service.why(run_id).details[0]


def test_it_begins_with_what_resources_say_and_goes_on_with_fewer(stage: Stage) -> None:
    stage.cluster.nodes = nodes(1)
    stage.pass_time(60)
    stage.cluster.nodes = nodes(3)
    stage.pass_time(60)
    run_id = stage.submit(elastic=ELASTIC, resources={"nodes": 2})
    other = stage.submit(resources={"nodes": 2})
    stage.pass_time()
    assert (nodes_of(stage, run_id), stage.state(other)) == (3, "queued")


def test_it_grows_when_nodes_are_back(stage: Stage) -> None:
    run_id = started(stage, 2)
    save(stage, run_id)
    stage.cluster.nodes = nodes(4)
    for _ in range(100):
        stage.pass_time(1)
        if nodes_of(stage, run_id) == 4:
            break
    stage.pass_time()
    assert (stage.state(run_id), nodes_of(stage, run_id)) == ("running", 4)
    first, second = stage.service.attempts(run_id).attempts
    assert first.exit is not None
    assert first.exit.reason == "preempted"
    assert first.ended_at is not None
    assert first.started_at is not None
    assert 60 <= first.ended_at - first.started_at <= 100
    assert second.created_at - first.ended_at <= 1  # no pause between them
    messages = [event.message for event in stage.service.events(run_id, after=0).events]
    assert "it grows from 2 to 4 nodes; attempt 1 is stopped with 10 s of grace" in messages
    for _ in range(30):
        stage.pass_time(5)
    assert len(stage.service.attempts(run_id).attempts) == 2  # it has all that it wants


def test_it_does_not_grow_without_a_checkpoint_nor_when_it_is_told_not_to(stage: Stage) -> None:
    unsaved = started(stage, 2)
    stage.cluster.nodes = nodes(4)
    for _ in range(30):
        stage.pass_time(5)
    assert nodes_of(stage, unsaved) == 2
    stage.service.cancel(unsaved, grace_s=0)
    stage.pass_time()
    settled = started(stage, 2, elastic={**ELASTIC, "grow_every": None})
    save(stage, settled)
    stage.cluster.nodes = nodes(4)
    for _ in range(30):
        stage.pass_time(5)
    assert nodes_of(stage, settled) == 2
    assert "takes more when it is started again" in stage.service.why(settled).details[0]


def test_a_run_that_is_cancelled_meanwhile_is_cancelled(stage: Stage) -> None:
    run_id = started(stage, 2, command="stubborn", grace="1h")
    save(stage, run_id)
    stage.cluster.nodes = nodes(4)
    for _ in range(100):
        stage.pass_time(1)
    assert stage.kinds(run_id).count("preempting") == 1
    stage.service.cancel(run_id, grace_s=0)
    for _ in range(3):
        stage.pass_time(1)
    assert stage.state(run_id) == "cancelled"


def test_room_that_flaps_is_not_worth_a_restart(stage: Stage) -> None:
    run_id = started(stage, 2)
    save(stage, run_id)
    for number in range(60):
        stage.cluster.nodes = nodes(4 if number % 3 else 2)  # ten seconds of every fifteen
        stage.pass_time(5)
    assert len(stage.service.attempts(run_id).attempts) == 1


def test_another_controller_goes_on_with_it(stage: Stage) -> None:
    """One dies after it gave the warning: the next knows nothing of it, and the run grows all the same."""
    run_id = started(stage, 2, command="stubborn", grace="1h")
    save(stage, run_id)
    stage.cluster.nodes = nodes(4)
    for _ in range(30):
        stage.pass_time(5)
    assert stage.kinds(run_id).count("preempting") == 1
    with stage.db.write() as tx:
        tx.execute(update(leases).values(pid_start=0))
    stage.controller = stage.new_controller()
    assert stage.controller.activate()
    stage.engine.finish(f"{run_id}.1", Exit(reason=ExitReason.PREEMPTED, message="preempted on request"))
    for _ in range(5):
        stage.pass_time(5)
    assert (stage.state(run_id), nodes_of(stage, run_id)) == ("running", 4)
