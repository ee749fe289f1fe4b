"""Runs of the version before have their rows among those that MLflow's clients see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, insert, inspect, select, update

from windlass.db.database import Database, sqlite_url
from windlass.db.migrate import HEAD, migrate, upgrade
from windlass.experiments.catalogue import experiment_of_project, load_experiment
from windlass.experiments.runstore import load_run
from windlass.experiments.tables import experiments
from windlass.experiments.types import as_map
from windlass.runs.tables import runs
from windlass.runs.tracked import catch_up
from windlass.testing.postgres import PostgresServer
from windlass.tracking.store import load_summaries
from windlass.tracking.tables import points

BEFORE = "0009"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        db = Database(sqlite_url(tmp_path / "empty.db"))
        yield db
        db.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database()
    db = Database(url)
    yield db
    db.close()
    server.drop_database(url)


def put_run(tx: Connection, run_id: str, **values: Any) -> None:
    known = MetaData()
    known.reflect(tx, only=["runs"])
    usual: dict[str, Any] = {
        "name": run_id,
        "project": "default",
        "user": None,
        "state": "queued",
        "version": 1,
        "spec": {"params": {}},
        "argv": [],
        "tags": {},
        "seed": 0,
        "origin": {},
        "submitted_at": 1_000.5,
        "queued_at": 1_000.5,
        "priority": 0,
        "nodes": 1,
        "cpus": 1.0,
        "memory_bytes": 0,
        "gpus": 0,
        "attempt_count": 0,
        "first_attempt": 1,
        "cpu_hours": 0.0,
        "gpu_hours": 0.0,
        "cost_usd": 0.0,
    }
    tx.execute(known.tables["runs"].insert().values({"id": run_id, **usual, **values}))


def test_runs_that_exist_are_taken_over(empty: Database) -> None:
    with empty.write() as tx:
        upgrade(tx, BEFORE)
        put_run(tx, "r-bbbbbbbbbb")
        put_run(
            tx,
            "r-cccccccccc",
            project="speech",
            user="ada",
            state="succeeded",
            started_at=1_001.0,
            ended_at=1_002.0,
            spec={"params": {"lr": 0.5, "net": {"depth": 2}}},
            tags={"team": "x"},
        )
        upgrade(tx, HEAD)
    with empty.read() as tx:
        waiting, ended = load_run(tx, "r-bbbbbbbbbb"), load_run(tx, "r-cccccccccc")
        assert load_experiment(tx, waiting.info.experiment_id).name == "Default"
        assert load_experiment(tx, ended.info.experiment_id).name == "speech"
    assert (waiting.info.experiment_id, waiting.info.status, waiting.info.start_ms) == (0, "SCHEDULED", 1_000_500)
    assert (ended.info.status, ended.info.start_ms, ended.info.end_ms) == ("FINISHED", 1_001_000, 1_002_000)
    assert ended.info.artifact_uri == f"mlflow-artifacts:/{ended.info.experiment_id}/r-cccccccccc/artifacts"
    assert as_map(ended.params) == {"lr": "0.5", "net.depth": "2"}
    assert as_map(ended.tags).items() >= {"team": "x", "mlflow.runName": "r-cccccccccc", "mlflow.user": "ada"}.items()


def test_projects_of_two_spellings_share_the_first_experiment(empty: Database) -> None:
    with empty.write() as tx:
        upgrade(tx, BEFORE)
        put_run(tx, "r-bbbbbbbbbb", project="Default")
        put_run(tx, "r-cccccccccc", project="default")
        upgrade(tx, HEAD)
        assert [(one.id, one.name) for one in tx.execute(select(experiments))] == [(0, "Default")]
        assert {load_run(tx, one).info.experiment_id for one in ("r-bbbbbbbbbb", "r-cccccccccc")} == {0}
        assert experiment_of_project(tx, "Default", now_ms=0) == 0


def test_summaries_get_the_time_of_the_point_that_came_last(empty: Database) -> None:
    run_id = "r-bbbbbbbbbb"
    with empty.write() as tx:
        upgrade(tx, BEFORE)
        put_run(tx, run_id)
        rows = [{"run_id": run_id, "name": "loss", "seq": seq, "at": 10.0 * seq} for seq in range(3)]
        tx.execute(insert(points), rows)
        before = MetaData()
        before.reflect(tx, only=["metric_summaries"])
        held = before.tables["metric_summaries"]
        tx.execute(insert(held), [{"run_id": run_id, "name": name, "points": 3} for name in ("loss", "other")])
        upgrade(tx, HEAD)
        assert inspect(tx).get_foreign_keys("metric_summaries") == []
        found = load_summaries(tx, [run_id])[run_id]
    assert {name: (one.last_at, one.count) for name, one in found.items()} == {"loss": (20.0, 3), "other": (None, 3)}


def test_an_empty_database_stays_empty(empty: Database) -> None:
    """A backup is restored into one."""
    with empty.write() as tx:
        upgrade(tx, HEAD)
        assert tx.execute(select(experiments)).all() == []


def test_what_servers_of_the_version_before_still_write_is_caught_up_with(empty: Database) -> None:
    """That is, their rows of runs alone."""
    migrate(empty)
    with empty.write() as tx:
        put_run(tx, "r-bbbbbbbbbb", project="speech", state="running", started_at=1_001.0, spec={"params": {"lr": 1}})
        put_run(tx, "r-cccccccccc")
    assert catch_up(empty) == 2
    with empty.read() as tx:
        run = load_run(tx, "r-bbbbbbbbbb")
        assert (run.info.status, run.info.start_ms, run.info.end_ms) == ("RUNNING", 1_001_000, None)
        assert load_experiment(tx, run.info.experiment_id).name == "speech"
        assert as_map(run.params) == {"lr": "1"}
        assert as_map(run.tags)["mlflow.runName"] == "r-bbbbbbbbbb"
    with empty.write() as tx:
        ended = {"state": "failed", "ended_at": 1_002.5}
        tx.execute(update(runs).where(runs.c.id == "r-bbbbbbbbbb").values(ended))
    assert catch_up(empty) == 1
    with empty.read() as tx:
        info = load_run(tx, "r-bbbbbbbbbb").info
        assert (info.status, info.start_ms, info.end_ms) == ("FAILED", 1_001_000, 1_002_500)
        assert load_run(tx, "r-cccccccccc").info.status == "SCHEDULED"
    assert catch_up(empty) == 0
