"""Filling our database and MLflow's with the same, past their APIs: that is not what is measured, and MLflow's would
take an hour. Theirs by a program in its own environment, from its own tables (bench/programs/mlflow_filling.py).
"""

from __future__ import annotations

import os
import random
import subprocess
import uuid
from pathlib import Path

from sqlalchemy import create_engine, text

from windlass.controller.compactor import Compactor
from windlass.core.clock import SystemClock
from windlass.db.database import Database
from windlass.experiments import runstore
from windlass.experiments.types import RUN_NAME, Pair, RunInfo, RunStatus, Stage
from windlass.tracking.blocks import Logged
from windlass.tracking.store import log_points

METRICS = 20
BEGAN_MS = 1_700_000_000_000
_AT_ONCE = 500
_POINTS_AT_ONCE = 20_000
_PROGRAM = Path(__file__).resolve().parent / "programs" / "mlflow_filling.py"


def fill_runs(url: str, experiment: str, count: int) -> None:
    """So many runs of 20 metrics."""
    source = random.Random(count)
    db = Database(url)
    for begin in range(0, count, _AT_ONCE):
        with db.write() as tx:
            runs = sorted((uuid.UUID(int=source.getrandbits(128)).hex, n) for n in range(begin, begin + _AT_ONCE))
            for run_id, number in runs:
                info = RunInfo(
                    id=run_id,
                    experiment_id=int(experiment),
                    name=f"run-{number}",
                    user="",
                    status=RunStatus.RUNNING,
                    start_ms=BEGAN_MS + number,
                    end_ms=None,
                    stage=Stage.ACTIVE,
                    artifact_uri=f"mlflow-artifacts:/{experiment}/{run_id}/artifacts",
                )
                runstore.insert_run(tx, info, (), [Pair(RUN_NAME, info.name)])
                points = [Logged(f"m{n}", source.random(), BEGAN_MS / 1000, 0) for n in range(METRICS)]
                log_points(tx, run_id, points)
    db.close()


def fill_chart(url: str, run_id: str, count: int) -> None:
    source = random.Random(count)
    db = Database(url)
    for begin in range(0, count, _POINTS_AT_ONCE):
        steps = range(begin, begin + _POINTS_AT_ONCE)
        with db.write() as tx:
            points = [Logged("loss", source.gauss(2, 0.1), (BEGAN_MS + step) / 1000, step) for step in steps]
            log_points(tx, run_id, points)
    Compactor(db, SystemClock()).sweep()
    db.close()


def fill_theirs(python: Path, url: str, what: str, whose: str, count: int) -> None:
    """`what`: runs of an experiment, or the chart of a run."""
    command = [str(python), str(_PROGRAM), url, what, whose, str(count)]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=900)
    if done.returncode != 0:
        raise RuntimeError(f"MLflow's database could not be filled:\n{done.stderr[-2000:]}")


def let_settle(*urls: str) -> None:
    """PostgreSQL looks at what has come into its tables within a minute (autovacuum), which nobody waits for here.
    Until then its plans are those of empty tables."""
    for url in urls:
        if url.startswith("postgresql"):
            engine = create_engine(url, isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.execute(text("VACUUM (ANALYZE)"))
            engine.dispose()
