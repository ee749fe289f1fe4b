"""Handing attempts over to engines: what they are told, and what comes of it if they refuse."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete

from tests.unit.controller.stage import NODE, Stage
from windlass.controller.lease import ShardLeases, leases
from windlass.core.errors import LaunchFailed, Unavailable
from windlass.core.ids import slot_of
from windlass.engines.contract import Launch
from windlass.testing.fake_engine import FakeEngine


def test_a_launch_that_is_refused_fails_its_run(stage: Stage) -> None:
    stage.engine.refusal = LaunchFailed("no interpreter 'pythn'")
    run_id = stage.submit()
    stage.controller.tick()
    view = stage.service.view(run_id)
    assert view.state == "failed"
    assert view.exit is not None
    assert (view.exit.reason, view.exit.message) == ("launch_failed", "no interpreter 'pythn'")


def test_secrets_that_nobody_can_open_any_more_fail_their_run(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = stage.submit(secrets={"TOKEN": "value"})
    monkeypatch.setenv("WINDLASS_SECRET_KEY", "A" * 43 + "=")  # a key, but another one
    stage.pass_time()
    view = stage.service.view(run_id)
    assert view.state == "failed"
    assert view.exit is not None
    assert view.exit.reason == "launch_failed"
    assert "sealed with another key" in view.exit.message


def test_secrets_reach_the_engine_and_nothing_else(stage: Stage) -> None:
    run_id = stage.submit(secrets={"TOKEN": "hunter2"})
    stage.controller.tick()
    made = stage.cluster.attempts[f"{run_id}.1"].launch
    assert made.secrets == {"TOKEN": "hunter2"}
    assert "hunter2" not in repr(made)
    assert "TOKEN" not in made.env


def test_what_is_wanted_of_checkpoints_reaches_the_ranks(stage: Stage) -> None:
    wanted = {"every": "10m", "keep": 5, "best": "loss", "folder": "/shared/checkpoints/"}
    run_id, plain = stage.submit(checkpoint=wanted), stage.submit(checkpoint={"every": 500})
    stage.controller.tick()
    env, other = (stage.cluster.attempts[f"{run}.1"].launch.env for run in (run_id, plain))
    assert json.loads(env["WINDLASS_CHECKPOINT"]) == {"every": "10m", "keep": 5, "best": "loss", "best_is": "lowest"}
    assert env["WINDLASS_CHECKPOINT_DIR"] == f"/shared/checkpoints/{run_id}"
    assert json.loads(other["WINDLASS_CHECKPOINT"]) == {"every": 500, "best_is": "lowest"}
    assert "WINDLASS_CHECKPOINT_DIR" not in other


def test_ranks_start_again_in_place_unless_retries_are_off(stage: Stage) -> None:
    runs = [stage.submit(**keys) for keys in ({}, {"retry": {"max": 5}}, {"retry": {"max": 0}})]
    stage.controller.tick()
    plain, asked, off = (stage.cluster.attempts[f"{run}.1"].launch.in_place for run in runs)
    assert plain is not None
    assert asked is not None
    assert off is None
    assert (plain.most, plain.errors_too, asked.most, asked.errors_too) == (3, False, 5, True)
    assert len({"", plain.key, asked.key}) == 3  # a secret of its own for each attempt
    assert plain.key not in repr(plain)


def test_a_resumed_run_says_since_when(stage: Stage) -> None:
    stage.engine.refusal = LaunchFailed("no interpreter 'pythn'")
    run_id = stage.submit()
    stage.controller.tick()
    stage.engine.refusal = None
    stage.service.resume(run_id)
    stage.controller.tick()
    assert stage.cluster.attempts[f"{run_id}.2"].launch.first_attempt == 2


class GatedEngine(FakeEngine):
    """Several launches at once; each goes through when its gate is open."""

    launches_at_once = 4

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.clock, cluster=stage.cluster)
        self.cluster.nodes = (replace(NODE, cpus=64),)
        self.gates: dict[str, threading.Event] = {}
        self.begun: list[str] = []
        stage.engines["fake"] = self
        stage.pass_time(60)  # its nodes become known

    def launch(self, launch: Launch) -> None:
        self.begun.append(launch.attempt_id)
        if gate := self.gates.get(launch.attempt_id):
            assert gate.wait(150)
        super().launch(launch)

    def shut(self, run_id: str) -> threading.Event:
        return self.gates.setdefault(f"{run_id}.1", threading.Event())


def passes_until(stage: Stage, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 150
    while not done():
        assert time.monotonic() < deadline
        stage.pass_time(0.01)


def test_a_launch_that_takes_long_keeps_neither_the_pass_nor_the_others(stage: Stage) -> None:
    engine = GatedEngine(stage)
    slow, *others = (stage.submit() for _ in range(8))
    gate = engine.shut(slow)
    passes_until(stage, lambda: {stage.state(run_id) for run_id in others} == {"running"})
    assert stage.state(slow) == "starting"
    gate.set()
    passes_until(stage, lambda: stage.state(slow) == "running")
    assert sorted(engine.begun) == sorted(f"{run_id}.1" for run_id in (slow, *others)), "each was launched once"


def test_what_is_wanted_of_an_attempt_waits_for_the_end_of_its_launch(stage: Stage) -> None:
    """Were it taken for absent meanwhile, it would end on record and start on its node."""
    engine = GatedEngine(stage)
    run_id = stage.submit()
    gate = engine.shut(run_id)
    passes_until(stage, lambda: engine.begun != [])
    stage.service.cancel(run_id, grace_s=0)
    for _ in range(3):
        stage.pass_time()
    assert stage.state(run_id) == "starting"
    gate.set()
    passes_until(stage, lambda: stage.state(run_id) == "cancelled")
    passes_until(stage, lambda: stage.cluster.attempts[f"{run_id}.1"].released)


def test_one_that_waits_for_its_launch_can_be_cancelled(stage: Stage) -> None:
    engine = GatedEngine(stage)
    run_ids = [stage.submit(resources={"cpus": 1}) for _ in range(20)]
    gates = [engine.shut(run_id) for run_id in run_ids]
    passes_until(stage, lambda: len(engine.begun) == engine.launches_at_once)
    stage.service.cancel(run_ids[-1], grace_s=0)
    passes_until(stage, lambda: stage.state(run_ids[-1]) == "cancelled")
    for gate in gates:
        gate.set()
    passes_until(stage, lambda: {stage.state(run_id) for run_id in run_ids[:-1]} == {"running"})
    assert f"{run_ids[-1]}.1" not in engine.begun


def test_a_refusal_that_comes_later_fails_its_run_too(stage: Stage) -> None:
    engine = GatedEngine(stage)
    engine.refusal = LaunchFailed("no interpreter 'pythn'")
    run_id = stage.submit()
    passes_until(stage, lambda: stage.state(run_id) == "failed")
    view = stage.service.view(run_id)
    assert view.exit is not None
    assert (view.exit.reason, view.exit.message) == ("launch_failed", "no interpreter 'pythn'")


def test_an_engine_that_is_away_at_the_launch_is_asked_again(stage: Stage) -> None:
    engine = GatedEngine(stage)
    engine.refusal = Unavailable("not now")
    run_id = stage.submit()
    passes_until(stage, lambda: len(engine.begun) > 2)
    assert stage.state(run_id) == "starting"
    engine.refusal = None
    passes_until(stage, lambda: stage.state(run_id) == "running")


def test_nothing_is_begun_after_the_time_of_the_lease(stage: Stage) -> None:
    """As in a process that was stopped for a while: its threads may go on before its loop learns what has happened."""
    engine = GatedEngine(stage)
    run_ids = [stage.submit(resources={"cpus": 1}) for _ in range(engine.launches_at_once + 1)]
    gates = [engine.shut(run_id) for run_id in run_ids]
    passes_until(stage, lambda: len(engine.begun) == engine.launches_at_once)
    futures = [item.future for item in stage.controller._launches._lanes["fake"].under_way.values()]
    assert len(futures) == len(run_ids)
    stage.clock.advance(60)
    for gate in gates:
        gate.set()
    assert not wait(futures, timeout=150).not_done
    assert len(engine.begun) == engine.launches_at_once
    passes_until(stage, lambda: {stage.state(run_id) for run_id in run_ids} == {"running"})


def test_shards_are_kept_while_their_runs_are_being_launched(stage: Stage) -> None:
    """Given away, their runs would be launched by their next controller at the same moment."""
    first = ShardLeases(2, monotonic=stage.clock.monotonic)
    with stage.db.write() as tx:
        tx.execute(delete(leases))
    assert first.acquire(stage.db)
    stage.clock.advance(3)
    first.acquire(stage.db)
    second = ShardLeases(2, monotonic=stage.clock.monotonic)
    second.acquire(stage.db)
    first.acquire(stage.db, may_release=lambda: False)
    assert first.held == {0, 1}
    first.acquire(stage.db, may_release=lambda: True)
    assert len(first.held) == 1


def test_those_that_wait_for_a_thread_come_in_the_order_of_the_queue(stage: Stage) -> None:
    """Also those that are begun by a later pass, which finds them among all that live."""
    engine = GatedEngine(stage)
    engine.launches_at_once = 2
    stuck = stage.submit(resources={"cpus": 1})
    gate = engine.shut(stuck)  # so that one thread is left, which begins one after the other
    passes_until(stage, lambda: engine.begun != [])
    run_ids = [stage.submit(resources={"cpus": 1}) for _ in range(14)]
    urgent = stage.submit(resources={"cpus": 1}, priority="high")
    passes_until(stage, lambda: {stage.state(run_id) for run_id in run_ids} == {"running"})
    assert engine.begun == [f"{run_id}.1" for run_id in (stuck, urgent, *run_ids)]
    gate.set()
    passes_until(stage, lambda: stage.state(stuck) == "running")


def test_what_came_of_a_launch_is_not_told_after_the_runs_were_anothers(stage: Stage) -> None:
    """Meanwhile the other may have launched it, and then it must not end on record."""
    engine = GatedEngine(stage)
    engine.refusal = LaunchFailed("no interpreter 'pythn'")
    run_id = stage.submit()
    gate = engine.shut(run_id)
    passes_until(stage, lambda: engine.begun != [])
    futures = [item.future for item in stage.controller._launches._lanes["fake"].under_way.values()]
    other = ShardLeases(monotonic=stage.clock.monotonic)
    stage.controller._lease.give_up(stage.db)
    assert other.acquire(stage.db)
    gate.set()
    assert not wait(futures, timeout=150).not_done
    assert not stage.controller.activate()
    engine.refusal = None
    other.give_up(stage.db)
    assert stage.controller.activate()
    passes_until(stage, lambda: stage.state(run_id) != "starting")
    assert stage.state(run_id) == "running"


def test_nothing_is_begun_while_shards_are_to_be_given_back(stage: Stage) -> None:
    """With a long queue there would always be a launch under way, and the other controller would wait for ever."""
    with stage.db.write() as tx:
        tx.execute(delete(leases))
    stage.controller = stage.new_controller(shards=2)
    assert stage.controller.activate()
    engine = GatedEngine(stage)
    stuck = stage.submit(resources={"cpus": 1})
    gate = engine.shut(stuck)
    passes_until(stage, lambda: engine.begun != [])
    other = ShardLeases(2, monotonic=stage.clock.monotonic)
    assert not other.acquire(stage.db)
    later = [stage.submit(resources={"cpus": 1}) for _ in range(8)]
    assert stage.controller.activate()
    stage.pass_time(0.01)
    assert engine.begun == [f"{stuck}.1"]
    assert stage.controller._lease.slots is None
    gate.set()
    passes_until(stage, lambda: stage.controller.activate() and stage.controller._lease.slots is not None)
    assert other.acquire(stage.db)
    mine = [run_id for run_id in (stuck, *later) if slot_of(run_id) in (stage.controller._lease.slots or ())]
    passes_until(stage, lambda: {stage.state(run_id) for run_id in mine} <= {"running"})
