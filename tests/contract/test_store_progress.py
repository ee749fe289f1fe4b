"""How far a run is: by what clients log, by its params, by what it prints."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy import Connection, update

from windlass.core.errors import InvalidInput
from windlass.db.database import Database
from windlass.experiments.runservice import TrackedRunService
from windlass.experiments.types import Metric, Pair
from windlass.runs import views
from windlass.runs.progress import load_marks, take_logged
from windlass.runs.service import RunService
from windlass.runs.tables import runs
from windlass.testing.clock import FakeClock
from windlass.tracking.blocks import Logged
from windlass.tracking.points import MetricPoint, PrintedProgress, Teller
from windlass.tracking.store import ingest, load_position, note_printed
from windlass.wire import runs as wire


def submitted(service: RunService, **params: object) -> str:
    spec = {"command": "true", "code": None, "params": params}
    return service.submit(wire.SubmitRequest(spec=spec), idempotency_key=None, user=None).id


@pytest.fixture
def tracked(database: Database, clock: FakeClock) -> TrackedRunService:
    return TrackedRunService(db=database, clock=clock, own_values=take_logged)


def log(tracked: TrackedRunService, run_id: str, name: str, step: int, at_s: int) -> None:
    tracked.log_metric(run_id, Metric(key=name, value=1.0, at_ms=1000 * at_s, step=step))


def progress_of(database: Database, run_id: str) -> wire.Progress:
    with database.read() as tx:
        found = views.progress_view(load_marks(tx, [run_id]).get(run_id))
    assert found is not None
    return found


def test_a_run_that_logs_as_mlflow_does_has_progress(
    service: RunService, tracked: TrackedRunService, database: Database
) -> None:
    run_id = submitted(service, max_steps=100)
    log(tracked, run_id, "started", 0, 1_000)  # a step of 0 means none
    log(tracked, run_id, "loss", 10, 1_010)
    log(tracked, run_id, "accuracy", 10, 1_010)
    log(tracked, run_id, "loss", 20, 1_020)
    log(tracked, run_id, "epoch/loss", 1, 1_021)  # counts something else
    progress = progress_of(database, run_id)
    assert (progress.step, progress.total, progress.eta_s) == (20, 100, 80.0)


def test_another_server_goes_on_where_the_first_was(
    service: RunService, tracked: TrackedRunService, database: Database, clock: FakeClock
) -> None:
    run_id = submitted(service)
    log(tracked, run_id, "loss", 10, 1_010)
    other = TrackedRunService(db=database, clock=clock, own_values=take_logged)
    log(other, run_id, "loss", 5, 1_011)
    log(other, run_id, "loss", 30, 1_030)
    log(tracked, run_id, "loss", 20, 1_031)
    with database.read() as tx:
        mark = load_marks(tx, [run_id])[run_id]
    assert (mark.step, mark.first_step, mark.total) == (30, 10, None)


def test_params_that_a_client_logs_say_the_total(
    service: RunService, tracked: TrackedRunService, database: Database
) -> None:
    run_id = submitted(service)
    tracked.log_batch(run_id, [], [Pair("epochs", "4"), Pair("steps_per_epoch", "50")], [])
    log(tracked, run_id, "loss", 10, 1_010)
    progress = progress_of(database, run_id)
    assert (progress.step, progress.total) == (10, 200)


def test_a_transaction_that_is_given_up_takes_no_step_with_it(
    service: RunService, database: Database, clock: FakeClock
) -> None:
    run_id = submitted(service)
    failures = iter([True])

    def take(tx: Connection, run_id: str, values: Sequence[Logged], *, now: float) -> None:
        take_logged(tx, run_id, values, now=now)
        if next(failures, False):
            raise InvalidInput("not this time")

    tracked = TrackedRunService(db=database, clock=clock, own_values=take)
    with pytest.raises(InvalidInput):
        log(tracked, run_id, "loss", 100, 1_000)
    log(tracked, run_id, "loss", 100, 1_000)
    assert progress_of(database, run_id).step == 100


def test_the_next_attempt_of_a_run_is_told_from_its_first_step_on(
    service: RunService, tracked: TrackedRunService, database: Database
) -> None:
    run_id = submitted(service)
    log(tracked, run_id, "loss", 80, 1_000)
    with database.write() as tx:
        tx.execute(update(runs).where(runs.c.id == run_id).values(attempt_count=2))
    log(tracked, run_id, "loss", 10, 2_000)
    log(tracked, run_id, "loss", 20, 2_010)
    with database.read() as tx:
        mark = load_marks(tx, [run_id])[run_id]
    assert (mark.step, mark.first_step, mark.teller, mark.attempt) == (20, 10, Teller.MLFLOW, 2)


def test_a_spool_tells_which_attempt_it_is_of(service: RunService, database: Database) -> None:
    run_id = submitted(service)
    for number, step in ((1, 50), (2, 40), (1, 51)):
        point = MetricPoint(at=1_000.0 + step, step=step, values={"loss": 1.0})
        with database.write() as tx:
            source = f"spool:{run_id}.{number}:0"
            position = load_position(tx, run_id, source)
            ingest(tx, run_id, source, [point], position=position, next_position=position + 1)
    with database.read() as tx:
        mark = load_marks(tx, [run_id])[run_id]
    assert (mark.step, mark.teller, mark.attempt) == (40, Teller.JOB, 2)


def test_what_is_printed_is_progress_too(service: RunService, database: Database) -> None:
    run_id = submitted(service)
    for step, at in ((10, 1_000.0), (20, 1_010.0)):
        with database.write() as tx:
            note_printed(tx, run_id, PrintedProgress(step=step, total=50, at=at), attempt=1)
    progress = progress_of(database, run_id)
    assert (progress.step, progress.total, progress.eta_s) == (20, 50, 30.0)
