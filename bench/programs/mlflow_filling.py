"""Rows for the tables of MLflow's own server, in an environment that has it.
Usage: mlflow_filling.py DATABASE runs|chart EXPERIMENT|RUN COUNT
"""

from __future__ import annotations

import random
import sys
import uuid

from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlRun, SqlTag
from sqlalchemy import create_engine, insert

_METRICS = 20
_BEGAN_MS = 1_700_000_000_000


def runs(tx, experiment: str, count: int) -> None:  # type: ignore[no-untyped-def]
    for begin in range(0, count, 500):
        rows = {table: [] for table in (SqlRun, SqlTag, SqlMetric, SqlLatestMetric)}  # type: ignore[var-annotated]
        for number in range(begin, begin + 500):
            run_id = uuid.uuid4().hex
            rows[SqlRun].append(
                {
                    "run_uuid": run_id,
                    "name": f"run-{number}",
                    "source_type": "UNKNOWN",
                    "source_name": "",
                    "entry_point_name": "",
                    "user_id": "",
                    "status": "RUNNING",
                    "start_time": _BEGAN_MS + number,
                    "source_version": "",
                    "lifecycle_stage": "active",
                    "artifact_uri": f"mlflow-artifacts:/{experiment}/{run_id}/artifacts",
                    "experiment_id": int(experiment),
                }
            )
            rows[SqlTag].append({"key": "mlflow.runName", "value": f"run-{number}", "run_uuid": run_id})
            points = [point(run_id, f"m{n}", random.random(), 0) for n in range(_METRICS)]
            rows[SqlMetric] += points
            rows[SqlLatestMetric] += points
        for table, found in rows.items():
            tx.execute(insert(table.__table__), found)


def chart(tx, run_id: str, count: int) -> None:  # type: ignore[no-untyped-def]
    for begin in range(0, count, 20_000):
        points = [point(run_id, "loss", random.gauss(2, 0.1), step) for step in range(begin, begin + 20_000)]
        tx.execute(insert(SqlMetric.__table__), points)
    tx.execute(insert(SqlLatestMetric.__table__), points[-1:])


def point(run_id: str, key: str, value: float, step: int) -> dict[str, object]:
    at_ms = _BEGAN_MS + step
    return {"key": key, "value": value, "timestamp": at_ms, "step": step, "is_nan": False, "run_uuid": run_id}


if __name__ == "__main__":
    database, what, whose, count = sys.argv[1:]
    with create_engine(database).begin() as connection:
        {"runs": runs, "chart": chart}[what](connection, whose, int(count))
