"""The controller's passes over a fake engine, on each kind of database."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text, update

from windlass.agent.layout import metrics_spool
from windlass.controller import commit
from windlass.controller.lease import LeaseLost, ShardLeases, leases
from windlass.controller.loop import Controller
from windlass.core.errors import LaunchFailed, Unavailable
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Node, Placement
from windlass.db.database import Database
from windlass.engines.contract import Engine, Launch, Observation
from windlass.runs.records import RunRecord
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.tenancy.prices import PriceBook
from windlass.testing.clock import FakeClock
from windlass.testing.fake_engine import FakeCluster, FakeEngine
from windlass.wire import runs as wire

NODE = Node(engine="fake", name="n", cpus=4, memory_bytes=10**9, gpus=2)


@dataclass
class Stage:
    db: Database
    service: RunService
    seal: Seal
    clock: FakeClock
    cluster: FakeCluster = field(default_factory=lambda: FakeCluster(nodes=(NODE,)))

    def __post_init__(self) -> None:
        self.engine = FakeEngine(self.clock, cluster=self.cluster)
        self.engines: dict[str, Engine] = {"fake": self.engine}
        self.controller = self.new_controller()
        assert self.controller.activate()

    def new_controller(self) -> Controller:
        return Controller(
            self.db,
            lambda _nudge: self.engines,
            self.seal,
            self.clock,
            ShardLeases(monotonic=self.clock.monotonic),
            prices=PriceBook(),
            jitter=random.Random(0),
        )

    def submit(self, command: str = "serve", secrets: dict[str, str] | None = None, **spec: Any) -> str:
        request = wire.SubmitRequest(
            spec={"command": command, "code": None, "secrets": sorted(secrets or ()), **spec}, secrets=secrets or {}
        )
        self.clock.advance(0.001)  # the order of submission is the order of the queue
        return self.service.submit(request, idempotency_key=None, user=None).id

    def pass_time(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.controller.tick()

    def state(self, run_id: str) -> str:
        return self.service.view(run_id).state

    def kinds(self, run_id: str) -> list[str]:
        return [event.kind for event in self.service.events(run_id, after=0).events]


@pytest.fixture
def stage(database: Database, service: RunService, seal: Seal, clock: FakeClock) -> Stage:
    return Stage(database, service, seal, clock)


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


def test_a_launch_that_is_refused_fails_its_run(stage: Stage) -> None:
    stage.engine.refusal = LaunchFailed("no interpreter 'pythn'")
    run_id = stage.submit()
    stage.controller.tick()
    view = stage.service.view(run_id)
    assert view.state == "failed"
    assert view.exit is not None
    assert (view.exit.reason, view.exit.message) == ("launch_failed", "no interpreter 'pythn'")


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


def test_what_goes_wrong_with_one_run_does_not_keep_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cursed, fine = stage.submit(), stage.submit()
    real = commit.commit_placements

    def fail_for_one(tx: Connection, placed: Sequence[tuple[RunRecord, Placement]], *, now: float) -> None:
        real(tx, placed, now=now)
        if any(run.id == cursed for run, _ in placed):
            tx.execute(text("SELECT no_such_column FROM runs"))

    monkeypatch.setattr(commit, "commit_placements", fail_for_one)
    stage.pass_time()
    assert (stage.state(cursed), stage.state(fine)) == ("queued", "starting")
    assert cursed in caplog.text
    monkeypatch.undo()
    stage.pass_time()
    assert stage.state(cursed) == "starting"


def test_secrets_reach_the_engine_and_nothing_else(stage: Stage) -> None:
    run_id = stage.submit(secrets={"TOKEN": "hunter2"})
    stage.controller.tick()
    made = stage.cluster.attempts[f"{run_id}.1"].launch
    assert made.secrets == {"TOKEN": "hunter2"}
    assert "hunter2" not in repr(made)
    assert "TOKEN" not in made.env


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
        import dataclasses

        found = super().poll(attempt_ids)
        return {
            attempt_id: dataclasses.replace(
                seen, usage=self.usage, environment={"host": "a\0b", "packages": {"\udcff": "1"}}
            )
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


class SpoolingEngine(FakeEngine):
    folder: Path

    def poll(self, attempt_ids: Sequence[str]) -> dict[str, Observation]:
        import dataclasses

        found = super().poll(attempt_ids)
        return {key: dataclasses.replace(seen, log_dirs=(str(self.folder),)) for key, seen in found.items()}


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


def test_a_controller_that_was_replaced_stops_at_once(stage: Stage) -> None:
    from sqlalchemy import update

    from windlass.controller.lease import leases

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
