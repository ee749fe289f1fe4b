"""What programs of a run are told, and for how long their token is good; and how the run's other row follows it."""

from __future__ import annotations

import pytest

from windlass.core.errors import InvalidInput
from windlass.db.database import Database
from windlass.experiments.catalogue import load_experiment, update_experiment
from windlass.experiments.runstore import load_info
from windlass.experiments.types import RunInfo, Stage
from windlass.runs import store
from windlass.runs.access import RunTokens, TrackingAccess
from windlass.runs.annotations import groups_query
from windlass.runs.records import RunRecord
from windlass.runs.sealing import Seal
from windlass.runs.search import search
from windlass.runs.service import RunService
from windlass.runs.types import RunState
from windlass.testing.clock import FakeClock
from windlass.wire import runs as wire

URL = "http://server:8470"


@pytest.fixture
def run_id(service: RunService) -> str:
    spec = {"command": "true", "code": None, "project": "speech"}
    return service.submit(wire.SubmitRequest(spec=spec), idempotency_key=None, user="ada").id


@pytest.fixture
def tokens(database: Database, seal: Seal, clock: FakeClock) -> RunTokens:
    return RunTokens(database, seal, clock)


def load(database: Database, run_id: str) -> tuple[RunRecord, RunInfo]:
    with database.read() as tx:
        run = store.load_run(tx, run_id)
        assert run is not None
        return run, load_info(tx, run_id)


def test_a_token_ends_an_hour_after_its_run(
    service: RunService, tokens: RunTokens, clock: FakeClock, run_id: str
) -> None:
    token = tokens.token(run_id)
    assert tokens.is_valid(token)
    service.cancel(run_id, grace_s=None)
    clock.advance(3_590)
    assert tokens.is_valid(token)
    clock.advance(20)
    assert not tokens.is_valid(token)


def test_only_the_servers_key_makes_tokens(
    database: Database, tokens: RunTokens, clock: FakeClock, run_id: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = RunTokens(database, Seal(tmp_path_factory.mktemp("other") / "secret.key"), clock)
    for wrong in (other.token(run_id), tokens.token("r-bbbbbbbbbb"), run_id, f"{run_id}.", "", "x"):
        assert not tokens.is_valid(wrong)


def test_a_program_is_told_of_its_run(database: Database, tokens: RunTokens, run_id: str) -> None:
    run, info = load(database, run_id)
    access = TrackingAccess(database, tokens, url=lambda type: URL if type == "local" else None)
    address, secret = {"MLFLOW_TRACKING_URI": URL}, {"MLFLOW_TRACKING_TOKEN": tokens.token(run_id)}
    itself = {"MLFLOW_RUN_ID": run_id, "MLFLOW_EXPERIMENT_ID": str(info.experiment_id)}
    assert access.tell(run, "local", {}) == ({**address, **itself}, secret)
    assert access.tell(run, "ray", {}) == ({}, {}), "nobody knows where the server is from there"
    assert access.tell(run, "local", {"MLFLOW_TRACKING_URI": "http://other"}) == ({}, {})
    assert access.tell(run, "local", {"MLFLOW_EXPERIMENT_NAME": "mine"}) == (address, secret)
    assert access.tell(run, "local", {"MLFLOW_TRACKING_TOKEN": "own"}) == ({**address, **itself}, {})


def test_the_other_row_follows_the_run(database: Database, service: RunService, clock: FakeClock, run_id: str) -> None:
    assert load(database, run_id)[1].status == "SCHEDULED"
    clock.advance(5)
    service.cancel(run_id, grace_s=None)
    _, info = load(database, run_id)
    assert (info.status, info.end_ms) == ("KILLED", int(clock.now() * 1000))
    service.resume(run_id)
    _, info = load(database, run_id)
    assert (info.status, info.end_ms) == ("SCHEDULED", None)


def test_a_run_may_be_in_an_experiment_of_another_name_than_its_project(
    database: Database, service: RunService, clock: FakeClock
) -> None:
    spec = {"command": "true", "code": None, "project": "speech", "experiment": "ablations", "group": "wide"}
    run_id = service.submit(wire.SubmitRequest(spec=spec), idempotency_key=None, user="ada").id
    _, info = load(database, run_id)
    with database.read() as tx:
        assert load_experiment(tx, info.experiment_id).name == "ablations"
        asked = {"order": (), "cursor": None, "limit": 10, "now": clock.now()}
        for where in (None, "project = 'speech' and experiment = 'ablations'"):
            [found] = search(tx, where=where, project="speech", **asked).runs
            assert (found.id, found.project) == (run_id, "speech")
        assert search(tx, where=None, project="ablations", **asked).runs == []
        assert [row[:2] for row in tx.execute(groups_query("speech"))] == [("wide", 1)]
        assert tx.execute(groups_query("ablations")).all() == []


def test_no_run_is_taken_for_an_experiment_that_is_deleted(database: Database, service: RunService) -> None:
    spec = {"command": "true", "code": None, "experiment": "ablations"}
    request = wire.SubmitRequest(spec=spec)
    first = service.submit(request, idempotency_key=None, user="ada").id
    number = load(database, first)[1].experiment_id
    with database.write() as tx:
        update_experiment(tx, number, now_ms=1, stage=Stage.DELETED)
    with pytest.raises(InvalidInput, match="the experiment 'ablations' is deleted"):
        service.submit(request, idempotency_key=None, user="ada")
    with database.read() as tx:
        assert len(store.load_runs_in(tx, [RunState.QUEUED])) == 1
