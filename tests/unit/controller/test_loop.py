"""What becomes of runs in the controller's passes, over a fake engine, on each kind of database."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests.unit.controller.stage import NODE, Stage
from windlass.agent.layout import metrics_spool
from windlass.controller import commit
from windlass.controller.recording import Work
from windlass.core.errors import Unavailable
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Placement
from windlass.engines.contract import Observation, Phase
from windlass.runs.records import RunRecord
from windlass.testing.fake_engine import FakeEngine
from windlass.wire.runs import MetricBatch, Point


def test_a_run_from_the_queue_to_its_end(stage: Stage) -> None:
    run_id = stage.submit("sleep 3600", resources={"cpus": 2, "gpus": 1})
    stage.controller.tick()
    assert stage.state(run_id) == "starting"
    stage.controller.tick()
    assert stage.state(run_id) == "running"
    for _ in range(37):
        stage.pass_time(100)
    assert stage.state(run_id) == "succeeded"
    assert stage.kinds(run_id) == ["submitted", "placed", "started", "attempt_ended", "succeeded"]
    view = stage.service.view(run_id)
    assert view.cost.cpu_hours == pytest.approx(2.0)
    assert view.cost.gpu_hours == pytest.approx(1.0)
    assert view.cost.usd == pytest.approx(2 * 0.04 + 2.0)
    assert stage.cluster.attempts[f"{run_id}.1"].released


def test_a_run_that_is_over_between_two_passes_is_accounted_whole(stage: Stage) -> None:
    run_id = stage.submit("exit 0")
    stage.controller.tick()
    stage.pass_time(0.1)
    assert stage.kinds(run_id) == ["submitted", "placed", "started", "attempt_ended", "succeeded"]


def test_those_that_do_not_fit_wait_in_order(stage: Stage) -> None:
    first, second, third = (stage.submit(resources={"cpus": 3}) for _ in range(3))
    stage.controller.tick()
    stage.controller.tick()
    assert [stage.state(run_id) for run_id in (first, second, third)] == ["running", "queued", "queued"]
    assert stage.service.why(third).position == 2
    stage.engine.finish(f"{first}.1", Exit(reason=ExitReason.COMPLETED))
    stage.controller.tick()
    stage.controller.tick()
    assert [stage.state(run_id) for run_id in (second, third)] == ["running", "queued"]


def test_a_lost_attempt_is_tried_again_after_its_backoff(stage: Stage) -> None:
    run_id = stage.submit()
    stage.controller.tick()
    stage.controller.tick()
    stage.engine.forget(f"{run_id}.1")
    stage.controller.tick()
    assert stage.state(run_id) == "recovering"
    assert "before attempt 2" in stage.service.why(run_id).summary
    stage.pass_time(0.5)
    assert stage.state(run_id) == "recovering"
    stage.pass_time(5)
    stage.pass_time()
    assert stage.state(run_id) == "running"
    assert [attempt.number for attempt in stage.service.attempts(run_id).attempts] == [1, 2]


def test_who_is_due_again_in_the_same_pass_does_not_go_to_a_node_that_is_gone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine: writing down that the attempt is lost takes longer than the run has to wait for the next."""
    nodes = (NODE, replace(NODE, name="other"))
    stage.cluster.nodes = nodes
    run_id = stage.submit()
    stage.controller.tick()
    stage.controller.tick()
    (first,) = stage.service.attempts(run_id).attempts
    stage.engine.forget(f"{run_id}.1")
    stage.cluster.nodes = tuple(node for node in nodes if node.name not in first.nodes)
    record = stage.controller._recorder.record

    def record_slowly(work: Sequence[Work], now: float) -> None:
        record(work, now)
        stage.clock.advance(60)

    monkeypatch.setattr(stage.controller._recorder, "record", record_slowly)
    stage.controller.tick()
    second = stage.service.attempts(run_id).attempts[-1]
    assert second.number == 2
    assert second.nodes != first.nodes


def test_retries_end(stage: Stage) -> None:
    run_id = stage.submit("exit 3", retry={"max": 2})
    for _ in range(20):
        stage.pass_time(60)
    view = stage.service.view(run_id)
    assert (view.state, view.attempts, view.exit_code) == ("failed", 3, 3)


def test_a_live_run_is_cancelled_with_grace(stage: Stage) -> None:
    run_id = stage.submit("stubborn")
    stage.controller.tick()
    stage.controller.tick()
    stage.service.cancel(run_id, grace_s=5)
    stage.controller.tick()
    assert stage.state(run_id) == "running"
    stage.pass_time(6)
    assert stage.state(run_id) == "cancelled"
    assert stage.service.view(run_id).exit_code == 130


def test_a_run_that_its_rule_has_stopped_says_so(stage: Stage) -> None:
    run_id = stage.submit(
        "stubborn", rules=[{"metric": "x", "above": 100}, {"metric": "x", "above": 3, "then": "stop"}]
    )
    stage.controller.tick()
    stage.controller.tick()
    batch = MetricBatch(source="s", seq=0, points=[Point(at=1_000.0, step=4, values={"x": 5.0})])
    stage.service.ingest(run_id, batch)
    assert "stopped by rule 2: x is 5, above 3" in stage.service.why(run_id).details
    stage.controller.tick()
    stage.pass_time(11)
    view = stage.service.view(run_id)
    assert (view.state, view.exit.reason, view.exit.message) == (
        "cancelled", "cancelled", "stopped by rule 2: x is 5, above 3",
    )  # fmt: skip
    assert stage.service.why(run_id).summary == "cancelled: stopped by rule 2: x is 5, above 3"
    stage.service.resume(run_id)
    stage.controller.tick()
    stage.controller.tick()
    stage.service.cancel(run_id, grace_s=1)
    stage.controller.tick()
    stage.pass_time(2)
    assert stage.service.view(run_id).exit.message == "cancelled on request"


def test_more_haste_reaches_the_engine(stage: Stage) -> None:
    run_id = stage.submit("stubborn")
    stage.controller.tick()
    stage.controller.tick()
    stage.service.cancel(run_id, grace_s=1_000)
    stage.controller.tick()
    stage.service.cancel(run_id, grace_s=0)
    stage.controller.tick()
    stage.pass_time(0.1)
    assert stage.state(run_id) == "cancelled"


class SpoolingEngine(FakeEngine):
    folder: Path

    def poll(self, attempt_ids: Sequence[str]) -> dict[str, Observation]:
        found = super().poll(attempt_ids)
        return {key: replace(seen, log_dirs=(str(self.folder),)) for key, seen in found.items()}


def test_points_are_collected_while_it_runs_and_all_of_them_by_its_end(stage: Stage, tmp_path: Path) -> None:
    engine = SpoolingEngine(stage.clock, cluster=stage.cluster)
    engine.folder = tmp_path
    stage.engines["fake"] = engine
    run_id = stage.submit()
    spool = tmp_path / metrics_spool(0)
    stage.controller.tick()
    stage.pass_time()
    spool.write_text(json.dumps({"t": 5, "s": 1, "n": 9, "m": {"loss": 1.0}}) + "\n")
    stage.pass_time()
    progress = stage.service.view(run_id).progress
    assert progress is not None
    assert (progress.step, progress.total) == (1, 9)
    with spool.open("a") as file:
        file.writelines(json.dumps({"t": 5 + n, "s": n, "m": {"loss": 1 / n}}) + "\n" for n in range(2, 9))
    engine.finish(f"{run_id}.1", Exit(reason=ExitReason.COMPLETED))
    stage.controller.reconcile()
    view = stage.service.view(run_id)
    assert view.state == "succeeded"
    assert view.metrics["loss"].count == 8


class LastWordEngine(FakeEngine):
    """Whose attempts say something last."""

    last: Mapping[str, Any]

    def poll(self, attempt_ids: Sequence[str]) -> dict[str, Observation]:
        found = super().poll(attempt_ids)
        return {
            key: replace(seen, usage=self.last) if seen.phase is Phase.ENDED else seen for key, seen in found.items()
        }


def test_what_is_printed_last_is_shown_of_a_run_that_has_ended(stage: Stage) -> None:
    engine = LastWordEngine(stage.clock, cluster=stage.cluster)
    stage.engines["fake"] = engine
    run_id = stage.submit()
    stage.controller.tick()
    engine.tell(f"{run_id}.1", {"printed": {"step": 1, "total": 20, "at": 10.0}})
    stage.pass_time()
    stage.pass_time()
    progress = stage.service.view(run_id).progress
    assert progress is not None
    assert progress.step == 1
    engine.last = {"printed": {"step": 20, "total": 20, "at": 12.0}}
    engine.finish(f"{run_id}.1", Exit(reason=ExitReason.COMPLETED))
    stage.controller.reconcile()
    progress = stage.service.view(run_id).progress
    assert progress is not None
    assert (progress.step, progress.total) == (20, 20)


def test_what_goes_wrong_with_one_run_does_not_keep_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cursed, fine = stage.submit(), stage.submit()
    real = commit.commit_placements

    def fail_for_one(tx: Connection, placed: Sequence[tuple[RunRecord, Placement]], **options: Any) -> None:
        real(tx, placed, **options)
        if any(run.id == cursed for run, _ in placed):
            tx.execute(text("SELECT no_such_column FROM runs"))

    monkeypatch.setattr(commit, "commit_placements", fail_for_one)
    stage.pass_time()
    assert (stage.state(cursed), stage.state(fine)) == ("queued", "starting")
    assert cursed in caplog.text
    monkeypatch.undo()
    stage.pass_time()
    assert stage.state(cursed) == "starting"


def test_a_run_costs_what_its_node_does(stage: Stage) -> None:
    """As it was when it was placed: prices of spot nodes change, and nodes go."""
    stage.cluster.nodes = (replace(NODE, price_per_hour=10.0),)
    stage.pass_time(60)
    run_id = stage.submit(resources={"gpus": 1, "cpus": 1})
    stage.pass_time()
    stage.pass_time()
    stage.cluster.nodes = (replace(NODE, price_per_hour=99.0),)
    stage.pass_time(3_600)
    going_on = stage.service.view(run_id).cost
    assert going_on.usd == pytest.approx(10.0 / 2, rel=0.01)
    stage.engine.finish(f"{run_id}.1", Exit(reason=ExitReason.COMPLETED))
    stage.controller.reconcile()
    assert stage.service.view(run_id).cost == going_on


def test_the_loop_goes_on_after_a_bad_pass_and_ends_when_told(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.controller.loop.PASS_EVERY_S", 0.01)
    passed = threading.Event()
    failures = [RuntimeError("a bug"), Unavailable("the database is away")]

    def tick() -> None:
        if failures:
            raise failures.pop(0)
        passed.set()

    monkeypatch.setattr(stage.controller, "tick", tick)
    thread = threading.Thread(target=stage.controller.run_forever)
    thread.start()
    assert passed.wait(10)
    stage.controller.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert stage.engine.closed
    assert "a controller pass failed" in caplog.text
    assert "the database is away" in caplog.text
    assert stage.new_controller().activate(), "the lease was given up"
