"""Rules of runs, on each kind of database: values are judged as they are stored, and what follows is on record."""

from __future__ import annotations

from typing import Any

from tests.contract.test_store_runs import advance, load, submit
from windlass.db.database import Database
from windlass.experiments.runservice import TrackedRunService
from windlass.experiments.types import Metric
from windlass.runs.rulebook import commit_quiet, heed_logged, load_quiet
from windlass.runs.service import RunService
from windlass.runs.types import EventKind
from windlass.testing.clock import FakeClock
from windlass.wire import runs as wire


def running(service: RunService, database: Database, *rules: dict[str, Any]) -> str:
    run_id = submit(service, rules=list(rules)).id
    advance(database, run_id, EventKind.PLACED, attempt_count=1)
    advance(database, run_id, EventKind.STARTED, started_at=1_000.0)
    return run_id


def log(service: RunService, run_id: str, *losses: float, seq: int = 0) -> None:
    points = [wire.Point(step=seq + n, at=1_000.0 + seq + n, values={"loss": loss}) for n, loss in enumerate(losses)]
    service.ingest(run_id, wire.MetricBatch(source="s", seq=seq, points=points))


def alerts(service: RunService, run_id: str) -> list[str]:
    return [event.message for event in service.events(run_id, after=0).events if event.kind == "alert"]


def test_a_rule_that_applies_is_told_once(service: RunService, database: Database) -> None:
    run_id = running(service, database, {"metric": "loss", "above": 5}, {"metric": "loss", "below": 0})
    log(service, run_id, 1, 9)
    log(service, run_id, 9, seq=2)
    assert alerts(service, run_id) == ["rule 1 at step 1: loss is 9, above 5"]
    assert not load(database, run_id).cancelling


def test_what_a_rule_has_seen_is_kept_between_batches(service: RunService, database: Database) -> None:
    run_id = running(service, database, {"metric": "loss", "patience": 3})
    for seq, loss in enumerate((3.0, 0.0, 1.0, 1.0, 1.0)):
        log(service, run_id, loss, seq=seq)
    assert alerts(service, run_id) == ["rule 1 at step 4: loss is no better for 3 values (best: 0 at step 1)"]


def test_a_repeated_batch_is_judged_once(service: RunService, database: Database) -> None:
    run_id = running(service, database, {"metric": "loss", "patience": 3})
    for _ in range(4):
        log(service, run_id, 1, 2)
    assert alerts(service, run_id) == []


def test_a_rule_can_end_its_run(service: RunService, database: Database) -> None:
    run_id = running(service, database, {"nan": True, "then": "stop"})
    log(service, run_id, 1, float("nan"))
    run = load(database, run_id)
    assert run.cancelling
    assert run.cancel_grace_s == run.spec.grace
    last = service.events(run_id, after=0).events[-1]
    assert (last.kind, last.message) == ("cancel_requested", "stopped by its rule 1: loss is nan; grace 10 s")


def test_a_run_that_has_ended_is_not_stopped_again(service: RunService, database: Database) -> None:
    run_id = running(service, database, {"nan": True, "then": "stop"})
    advance(database, run_id, EventKind.SUCCEEDED, ended_at=1_100.0)
    log(service, run_id, float("nan"))
    assert alerts(service, run_id) == ["rule 1 at step 0: loss is nan"]
    assert load(database, run_id).state == "succeeded"


def test_silence_is_found_and_told_once(service: RunService, database: Database, clock: FakeClock) -> None:
    run_id = running(service, database, {"silent": "1m"})
    idle = submit(service, rules=[{"silent": "1m"}]).id
    log(service, run_id, 1)

    def look(now: float) -> int:
        with database.write() as tx:
            quiet = load_quiet(tx, now=now)
            commit_quiet(tx, quiet, now=now)
        return len(quiet)

    assert [look(1_059), look(1_060), look(1_070)] == [0, 1, 0]
    assert alerts(service, run_id) == ["rule 1: no value of any metric for 1m00s"]
    assert alerts(service, idle) == []  # it waits: nothing can come


def test_a_clone_has_the_rules_too(service: RunService, database: Database) -> None:
    run_id = running(service, database, {"metric": "loss", "above": 5})
    clone = service.clone(run_id, wire.CloneRequest(), user=None)
    log(service, clone.id, 9)
    assert alerts(service, clone.id) == ["rule 1 at step 0: loss is 9, above 5"]


def test_a_spec_without_rules_is_stored_without_the_key(service: RunService, database: Database) -> None:
    assert load(database, submit(service).id).spec.rules == []
    assert "rules" not in (service.view(submit(service).id).spec or {})


def test_what_an_mlflow_client_logs_is_judged_too(service: RunService, database: Database, clock: FakeClock) -> None:
    run_id = running(service, database, {"metric": "loss", "above": 5, "then": "stop"})
    tracked = TrackedRunService(db=database, clock=clock, own_values=heed_logged)
    tracked.log_batch(run_id, metrics=[Metric(key="loss", value=9.0, at_ms=1_000_000, step=3)], params=[], tags=[])
    assert alerts(service, run_id) == ["rule 1 at step 3: loss is 9, above 5"]
    assert load(database, run_id).cancelling
