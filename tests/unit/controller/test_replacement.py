"""One controller acts, and knows when it no longer is the one."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from tests.unit.controller.stage import Stage
from windlass.controller import commit
from windlass.controller.lease import LeaseLost, ShardLeases, leases
from windlass.controller.loop import Controller
from windlass.core.resources import Node
from windlass.engines.contract import Engine, Launch
from windlass.tenancy.prices import PriceBook
from windlass.testing.clock import FakeClock
from windlass.testing.fake_engine import FakeEngine


class SlowEngine(FakeEngine):
    """A launch takes a second of the clock."""

    clock: FakeClock

    def launch(self, launch: Launch) -> None:
        self.clock.advance(1.0)
        super().launch(launch)


def test_the_lease_is_kept_while_many_are_launched(stage: Stage) -> None:
    stage.cluster.nodes = (Node(engine="fake", name="n", cpus=64, memory_bytes=10**12),)
    engine = SlowEngine(stage.clock, cluster=stage.cluster)
    engine.clock = stage.clock
    stage.engines["fake"] = engine
    stage.pass_time(60)
    standby = ShardLeases(monotonic=stage.clock.monotonic)
    with stage.db.write() as tx:
        tx.execute(update(leases).values(host="elsewhere"))
    run_ids = [stage.submit() for _ in range(12)]
    taken = []
    engine.launch = lambda launch: (SlowEngine.launch(engine, launch), taken.append(standby.acquire(stage.db)))  # type: ignore[func-returns-value,method-assign,assignment]
    stage.controller.tick()
    assert taken == [False] * 12
    assert {stage.state(run_id) for run_id in run_ids} == {"starting"}


def test_one_that_was_replaced_meanwhile_launches_nothing(stage: Stage) -> None:
    """As after a long pause between writing down where a run goes and handing it over."""
    stage.submit()
    real = commit.commit_each

    def commit_and_be_replaced(*args: Any) -> None:
        real(*args)
        stage.clock.advance(60)
        with stage.db.write() as tx:
            tx.execute(update(leases).values(holder="another"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "commit_each", commit_and_be_replaced)
        with pytest.raises(LeaseLost):
            stage.controller.place()
    assert stage.cluster.attempts == {}


def test_a_controller_that_was_replaced_stops_at_once(stage: Stage) -> None:
    with stage.db.write() as tx:
        tx.execute(update(leases).values(pid_start=0))
    second = stage.new_controller()
    assert second.activate()
    run_id = stage.submit()
    with pytest.raises(LeaseLost):
        stage.controller.tick()
    assert stage.state(run_id) == "queued"
    second.tick()
    assert stage.state(run_id) == "starting"


def test_a_standby_touches_nothing(stage: Stage) -> None:
    opened: list[int] = []
    lease = ShardLeases(monotonic=stage.clock.monotonic)

    def open_engines(_nudge: Any) -> dict[str, Engine]:
        opened.append(1)
        return {}

    standby = Controller(stage.db, open_engines, stage.seal, stage.clock, lease, prices=PriceBook())
    assert not standby.activate()
    assert opened == []
