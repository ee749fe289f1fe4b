"""Rules of runs, on each kind of database: values are judged as they are stored, and what follows is on record."""

from __future__ import annotations

from typing import Any

from tests.contract.test_store_runs import advance, load, submit
from windlass.core.resources import NodeShare, Placement
from windlass.db.database import Database
from windlass.experiments.runservice import TrackedRunService
from windlass.experiments.types import Metric
from windlass.runs import store
from windlass.runs.rulebook import commit_quiet, heed_logged, load_quiet
from windlass.runs.service import RunService
from windlass.runs.types import AttemptState, EventKind
from windlass.testing.clock import FakeClock
from windlass.wire import runs as wire


def running(service: RunService, database: Database, *rules: dict[str, Any]) -> str:
    run_id = submit(service, rules=list(rules)).id
    with database.write() as tx:
        placement = Placement(engine="fake", shares=(NodeShare(node="n", cpus=1, memory_bytes=0, gpu_indices=()),))
        attempt_id = store.insert_attempt(tx, load(database, run_id), placement, now=900.0)
        store.update_attempt(tx, attempt_id, started_at=1_000.0, state=AttemptState.RUNNING)
    advance(database, run_id, EventKind.PLACED, attempt_count=1)
    advance(database, run_id, EventKind.STARTED, started_at=1_000.0)
    return run_id


def look(database: Database, now: float, since: float = 0.0) -> int:
    with database.write() as tx:
        quiet = load_quiet(tx, now=now, since=since)
        commit_quiet(tx, quiet, now=now)
    return len(quiet)


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


def test_an_alert_says_which_value_of_what_it_was(service: RunService, database: Database) -> None:
    run_id = running(service, database, {"metric": "loss", "above": 5}, {"nan": True})
    log(service, run_id, 9, float("inf"))
    told = [event.data for event in service.events(run_id, after=0).events if event.kind == "alert"]
    common = {"kind": "rule", "metric": "loss", "then": "alert"}
    assert told == [
        {**common, "rule": 0, "value": 9.0, "step": 0},
        {**common, "rule": 1, "value": "Infinity", "step": 1},
    ]


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
    assert (last.kind, last.message) == ("cancel_requested", "stopped by rule 1: loss is nan; grace 10 s")


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

    assert [look(database, now) for now in (1_059, 1_060, 1_070)] == [0, 1, 0]
    assert alerts(service, run_id) == ["rule 1: no value of any metric for 1m00s"]
    assert alerts(service, idle) == []  # it waits: nothing can come


def test_nobody_is_called_quiet_by_who_has_not_listened_long_enough(service: RunService, database: Database) -> None:
    running(service, database, {"silent": "1m", "then": "stop"})
    assert [look(database, now, since=5_000.0) for now in (5_000, 5_059, 5_060)] == [0, 0, 1]


def test_what_is_stored_meanwhile_counts(service: RunService, database: Database) -> None:
    run_id = running(service, database, {"silent": "1m", "then": "stop"})
    with database.read() as tx:
        quiet = load_quiet(tx, now=1_100.0, since=0.0)
    assert len(quiet) == 1
    point = wire.Point(step=0, at=1_099.0, values={"loss": 1.0})
    service.ingest(run_id, wire.MetricBatch(source="s", seq=0, points=[point]))
    with database.write() as tx:
        commit_quiet(tx, quiet, now=1_100.0)
    assert alerts(service, run_id) == []
    assert not load(database, run_id).cancelling


def test_an_attempt_that_nobody_can_ask_is_not_called_quiet(service: RunService, database: Database) -> None:
    run_id = running(service, database, {"silent": "1m"})
    with database.write() as tx:
        store.update_attempt(tx, f"{run_id}.1", unknown_since=1_010.0)
    assert look(database, 2_000.0) == 0


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
