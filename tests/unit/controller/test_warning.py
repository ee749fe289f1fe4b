"""Telling runs that they give way: on record once, whoever dies meanwhile, and only while somebody needs their room."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller.stage import Stage
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Node
from windlass.db.database import Database
from windlass.engines.contract import Notice, StopKind
from windlass.runs import store
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.scheduling.core import index
from windlass.scheduling.core.types import Policy
from windlass.scheduling.rules import Rules
from windlass.testing.clock import FakeClock
from windlass.testing.fake_engine import FakeCluster, FakeEngine

WHOLE = {"gpus": 8, "cpus": 1}


class Death(BaseException):
    """The controller is gone, as with kill -9."""


class Deadly(FakeEngine):
    """Whoever tells an attempt to stop dies of it: before it was heard, or after."""

    dies: str | None = None

    def stop(self, attempt_id: str, *, grace_s: float, kind: StopKind = StopKind.CANCELLED) -> None:
        moment, self.dies = self.dies, None
        if moment == "before":
            raise Death
        super().stop(attempt_id, grace_s=grace_s, kind=kind)
        if moment == "after":
            raise Death


def node(name: str) -> Node:
    return Node(engine="fake", name=name, cpus=64, memory_bytes=10**12, gpus=8)


@pytest.fixture
def stage(database: Database, service: RunService, seal: Seal, clock: FakeClock) -> Stage:
    rules = Rules(policy=Policy(rank=index.rank))
    found = Stage(database, service, seal, clock, cluster=FakeCluster(nodes=(node("n0"),)), rules=rules)
    found.engine = found.engines["fake"] = Deadly(clock, cluster=found.cluster)
    found.controller.stop()
    found.controller = replaced(found)
    return found


def replaced(stage: Stage) -> Any:
    """Another controller, once the lease of the last is over."""
    controller = stage.new_controller()
    controller.activate()
    stage.clock.advance(60)
    assert controller.activate()
    return controller


def contended(stage: Stage, command: str = "serve", **spec: Any) -> tuple[str, str]:
    """One that runs, and one that it is to give way to: decided, on record, and nobody told yet."""
    low = stage.submit(command, resources=WHOLE, priority="low", **spec)
    stage.pass_time()
    stage.pass_time(400)
    high = stage.submit(resources=WHOLE, priority="high")
    stage.pass_time()
    assert leaving(stage, low)
    assert stage.kinds(low).count("preempting") == 0
    return low, high


def leaving(stage: Stage, run_id: str) -> bool:
    with stage.db.read() as tx:
        return store.load_attempts(tx, run_id)[-1].giving_way is not None


@pytest.mark.parametrize(
    ("moment", "command"),
    [("before", "serve"), ("before", "stubborn"), ("after", "serve"), ("after", "stubborn"), (None, "stubborn")],
)
def test_a_warning_is_on_record_once_whenever_the_controller_dies(
    stage: Stage, moment: str | None, command: str
) -> None:
    low, high = contended(stage, command, grace="5m")  # some are still there when the next controller comes
    assert isinstance(stage.engine, Deadly)
    stage.engine.dies = moment
    if moment is None:
        stage.pass_time()
    else:
        with pytest.raises(Death):
            stage.pass_time()
    stage.controller = replaced(stage)
    for _ in range(5):
        stage.pass_time(100)
    assert (stage.state(low), stage.state(high)) == ("recovering", "running")
    assert stage.kinds(low).count("preempting") == 1


def test_each_attempt_that_is_warned_has_its_own_event(stage: Stage) -> None:
    low, high = contended(stage)
    stage.pass_time()
    stage.pass_time()
    stage.engine.finish(f"{high}.1", Exit(reason=ExitReason.COMPLETED))
    stage.pass_time()
    stage.pass_time(4000)
    assert stage.state(low) == "running"
    stage.engine.warn(f"{low}.2", Notice(message="the node is reclaimed", deadline=stage.clock.now() + 30))
    stage.pass_time()
    stage.pass_time()
    told = [event for event in stage.service.events(low, after=0).events if event.kind == "preempting"]
    assert [event.attempt for event in told] == [1, 2]
    assert told[1].message.startswith("the node is reclaimed")


def test_who_was_not_told_goes_on_if_the_other_is_cancelled(stage: Stage) -> None:
    low, high = contended(stage)
    stage.service.cancel(high, grace_s=None)
    for _ in range(3):
        stage.pass_time()
    assert stage.state(low) == "running"
    assert not leaving(stage, low)
    assert "preempting" not in stage.kinds(low)


def test_who_was_not_told_goes_on_if_the_other_starts_elsewhere(stage: Stage) -> None:
    low, high = contended(stage)
    stage.cluster.nodes += (node("n1"),)
    stage.pass_time(10)  # the pass that would tell it finds the new node too
    for _ in range(2):
        stage.pass_time()
    assert (stage.state(low), stage.state(high)) == ("running", "running")
    assert not leaving(stage, low)
    assert "preempting" not in stage.kinds(low)


def test_one_that_was_spared_gives_way_to_the_next(stage: Stage) -> None:
    low, high = contended(stage)
    stage.service.cancel(high, grace_s=None)
    stage.pass_time()
    another = stage.submit(resources=WHOLE, priority="high")
    for _ in range(4):
        stage.pass_time()
    assert (stage.state(low), stage.state(another)) == ("recovering", "running")
    [told] = [event.message for event in stage.service.events(low, after=0).events if event.kind == "preempting"]
    assert another in told


def test_who_was_told_goes_through_with_it_and_comes_back_at_once(stage: Stage) -> None:
    low, high = contended(stage, "stubborn")
    stage.pass_time()
    assert stage.kinds(low).count("preempting") == 1
    stage.service.cancel(high, grace_s=None)
    stage.pass_time()
    assert leaving(stage, low)
    stage.pass_time(10)
    stage.pass_time()
    stage.pass_time()
    assert stage.state(low) == "running"
    assert stage.service.view(low).attempts == 2
