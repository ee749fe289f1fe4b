"""Engines that are away, are gone, stumble or say strange things: whose trouble that is, and whose it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.controller.stage import Stage
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Node
from windlass.engines.contract import Observation
from windlass.testing.fake_engine import FakeCluster, FakeEngine


def test_an_engine_that_is_away_changes_nothing_until_it_is_back(stage: Stage) -> None:
    run_id = stage.submit()
    stage.controller.tick()
    stage.controller.tick()
    stage.engine.away = True
    for _ in range(5):
        stage.pass_time(100)
    assert stage.state(run_id) == "running"
    stage.engine.away = False
    stage.engine.finish(f"{run_id}.1", Exit(reason=ExitReason.COMPLETED))
    stage.controller.tick()
    assert stage.state(run_id) == "succeeded"


def test_an_engine_that_is_away_does_not_keep_the_others_waiting(stage: Stage) -> None:
    other = FakeEngine(
        stage.clock, cluster=FakeCluster(nodes=(Node(engine="other", name="m", cpus=4, memory_bytes=10**9),))
    )
    stage.engines["other"] = other
    other.name = "other"
    stage.pass_time(60)
    first, second = stage.submit(resources={"cpus": 3}), stage.submit(resources={"cpus": 3})
    stage.controller.tick()
    stage.controller.tick()
    placed = {stage.service.attempts(run_id).attempts[0].engine: run_id for run_id in (first, second)}
    stage.service.cancel(placed["fake"], grace_s=0)
    stage.engine.away = True
    other.finish(f"{placed['other']}.1", Exit(reason=ExitReason.COMPLETED))
    stage.pass_time(60)
    assert stage.state(placed["other"]) == "succeeded"
    stage.engine.away = False
    stage.pass_time()
    stage.pass_time()
    assert stage.state(placed["fake"]) == "cancelled"
    assert all(attempt.released for engine in (stage.engine, other) for attempt in engine.cluster.attempts.values())


def test_an_engine_that_is_no_longer_configured_gets_nothing_new(stage: Stage) -> None:
    node = Node(engine="other", name="m", cpus=4, memory_bytes=10**9)
    other = FakeEngine(stage.clock, cluster=FakeCluster(nodes=(node,)))
    other.name = "other"
    stage.engines["other"] = other
    stage.pass_time(60)
    run_ids = [stage.submit(resources={"cpus": 3}) for _ in range(2)]
    stage.pass_time()
    stage.pass_time()
    del stage.engines["other"]
    stage.pass_time(60)
    run_ids.append(stage.submit(resources={"cpus": 3}))
    stage.pass_time()
    stage.pass_time()
    placed = {stage.service.attempts(run_id).attempts[0].engine: run_id for run_id in run_ids[:2]}
    assert stage.state(run_ids[2]) == "queued"
    assert stage.state(placed["other"]) == "running"
    assert "not in the controller's config" in " ".join(stage.service.why(placed["other"]).details)


@pytest.mark.parametrize("text", ["a\0b", "bad \udcff byte", "x" * 100_000])
def test_whatever_a_failure_says_it_is_written_down(stage: Stage, text: str) -> None:
    """One that could not be written would end every pass from then on, for all runs."""
    run_id, other = stage.submit(), stage.submit()
    stage.controller.tick()
    stage.controller.tick()
    stage.engine.finish(f"{run_id}.1", Exit(reason=ExitReason.EXIT_CODE, exit_code=1, message=text))
    stage.engine.finish(f"{other}.1", Exit(reason=ExitReason.COMPLETED))
    stage.pass_time()
    assert (stage.state(run_id), stage.state(other)) == ("failed", "succeeded")


class TalkativeEngine(FakeEngine):
    """Says strange things of its attempts."""

    usage: dict[str, Any]

    def poll(self, attempt_ids: Sequence[str]) -> dict[str, Observation]:
        found = super().poll(attempt_ids)
        return {
            attempt_id: replace(seen, usage=self.usage, environment={"host": "a\0b", "packages": {"\udcff": "1"}})
            for attempt_id, seen in found.items()
        }


def test_whatever_an_engine_says_of_usage_and_surroundings_is_written_down(stage: Stage) -> None:
    engine = TalkativeEngine(stage.clock, cluster=stage.cluster)
    engine.usage = {"cpu_percent": float("nan"), "gpus": [{"name": "\0"}], "rss_bytes": float("inf")}
    stage.engines["fake"] = engine
    run_id = stage.submit()
    stage.controller.tick()
    stage.pass_time()
    view = stage.service.view(run_id)
    assert view.state == "running"
    assert view.usage is not None
    assert view.usage["cpu_percent"] is None
    assert view.environment is not None
    assert view.model_dump_json()


class StumblingEngine(FakeEngine):
    """Finds something in one attempt that nobody foresaw."""

    cursed = ""

    def poll(self, attempt_ids: Sequence[str]) -> dict[str, Observation]:
        if self.cursed in attempt_ids:
            raise ValueError("usage.json holds list where an object belongs")
        return dict(super().poll(attempt_ids))

    def release(self, attempt_id: str) -> None:
        if attempt_id == self.cursed:
            raise KeyError("boot_id")
        super().release(attempt_id)


def test_an_attempt_that_cannot_be_made_out_is_unknown_and_the_others_go_on(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StumblingEngine(stage.clock, cluster=stage.cluster)
    stage.engines["fake"] = engine
    cursed, *others = (stage.submit() for _ in range(4))
    stage.controller.tick()
    stage.pass_time()
    engine.cursed = f"{cursed}.1"
    for run_id in others:
        engine.finish(f"{run_id}.1", Exit(reason=ExitReason.COMPLETED))
    stage.pass_time()
    stage.pass_time()
    assert [stage.state(run_id) for run_id in (cursed, *others)] == ["running", *["succeeded"] * 3]
    assert "cannot be made out: ValueError" in " ".join(stage.service.why(cursed).details)
    assert caplog.text.count("cannot be made out") == 1
    engine.cursed = ""
    engine.finish(f"{cursed}.1", Exit(reason=ExitReason.COMPLETED))
    stage.pass_time()
    assert stage.state(cursed) == "succeeded"


def test_an_attempt_that_cannot_be_released_keeps_no_other(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    engine = StumblingEngine(stage.clock, cluster=stage.cluster)
    stage.engines["fake"] = engine
    cursed, fine = stage.submit(), stage.submit()
    stage.controller.tick()
    stage.pass_time()
    for run_id in (cursed, fine):
        engine.finish(f"{run_id}.1", Exit(reason=ExitReason.COMPLETED))
    stage.controller.reconcile()
    engine.cursed = f"{cursed}.1"
    stage.pass_time()
    assert [stage.cluster.attempts[f"{run_id}.1"].released for run_id in (cursed, fine)] == [False, True]
    assert "boot_id" in caplog.text
