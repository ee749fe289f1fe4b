"""How many points a second does the metrics store take, what do they cost, and how quickly is a chart drawn?

Natively: runs of the real server on the real local engine log 20 metrics a step through `job.log`, until every point is
in the store. Then a chart of a metric of a million points, over HTTP.

With `--mlflow-python PYTHON` (of an environment with mlflow) also against MLflow's own server: bench/mlflow_arms.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also as `python bench/tracking.py`

from sqlalchemy import func, select

from bench.harness import Figure, Report, Table, finish, options, percentile, tell, workspace
from windlass.client.client import Client
from windlass.controller.compactor import Compactor
from windlass.core.clock import SystemClock
from windlass.db.database import Database, sqlite_url
from windlass.testing.servers import ServerProcess, running_server
from windlass.tracking.blocks import Logged
from windlass.tracking.store import log_points
from windlass.tracking.system import PREFIX
from windlass.tracking.tables import chunks, summaries, tails

PROGRAM = Path(__file__).resolve().parent / "programs" / "metric_load.py"
METRICS = 20
_CHART_POINTS = 1_000_000
_DRAWN = 1_000  # points of a chart
_PATIENCE_S = 180.0


@dataclass(slots=True, kw_only=True)
class Load:
    """What the runs logged, and what became of it."""

    runs: int
    points: int
    lasted_s: float
    stored_after_s: float  # from the first call to the last point in the store
    bytes_per_point: float
    packed_bytes_per_point: float
    server_cpu_percent: float
    server_rss_mb: float
    call_us: list[float] = field(default_factory=list)

    @property
    def points_per_s(self) -> float:
        return self.points / self.stored_after_s


def measure_load(server: ServerProcess, folder: Path, *, runs: int, lasts_s: float, points_per_s: float) -> Load:
    counts = folder / "counts"
    counts.mkdir()
    begin_at = time.time() + 10.0 + runs / 2
    steps_per_s = points_per_s / METRICS / runs
    with Client(server.url, token=server.token) as client:
        arguments = f"{begin_at} {lasts_s} {steps_per_s} {counts}"
        spec = {"command": f"{sys.executable} {PROGRAM} {arguments}", "code": None, "resources": {"cpus": 0.01}}
        ids = [client.submit({**spec, "name": f"load-{number}"}).id for number in range(runs)]
    with _database(server) as db:
        _wait(lambda: time.time() > begin_at, "the load to begin")
        cpu = server.cpu_s()
        _wait(lambda: len(list(counts.glob("*.json"))) == runs, "runs to end", lasts_s + _PATIENCE_S)
        told = [json.loads((counts / f"{run_id}.json").read_text()) for run_id in ids]
        points = sum(one["points"] for one in told)
        _wait(lambda: _stored(db, ids) >= points, "points to be stored")
        stored_after_s = time.time() - begin_at
        if (stored := _stored(db, ids)) != points:
            raise RuntimeError(f"{points} points were logged, and {stored} are stored")
        cpu = 100 * (server.cpu_s() - cpu) / stored_after_s
        size = _size(server)
        packed = _packed(db)
    return Load(
        runs=runs,
        points=points,
        lasted_s=statistics.median(one["lasted_s"] for one in told),
        stored_after_s=stored_after_s,
        bytes_per_point=size / points,
        packed_bytes_per_point=packed,
        server_cpu_percent=cpu,
        server_rss_mb=server.rss_bytes() / 1e6,
        call_us=[nanoseconds / 1000 for one in told for nanoseconds in one["call_ns"]],
    )


def measure_chart(server: ServerProcess, *, rounds: int) -> list[float]:
    """Milliseconds from asking to a chart of a metric of a million points."""
    source = random.Random(0)
    with Client(server.url, token=server.token) as client:
        run_id = client.submit({"command": "true", "code": None, "resources": {"cpus": 0.01}, "name": "chart"}).id
    began = time.time() - _CHART_POINTS
    with _database(server) as db:
        for start in range(0, _CHART_POINTS, 50_000):
            part = [Logged("loss", source.gauss(2, 0.1), began + step, step) for step in range(start, start + 50_000)]
            with db.write() as tx:
                log_points(tx, run_id, part)
        Compactor(db, SystemClock()).sweep()
    took = []
    with server.client() as client:
        for _ in range(rounds):
            before = time.perf_counter()
            answer = client.get(f"/api/runs/{run_id}/metrics", params={"name": "loss", "most": _DRAWN})
            answer.raise_for_status()
            took.append(1000 * (time.perf_counter() - before))
    return took


@contextlib.contextmanager
def _database(server: ServerProcess) -> Iterator[Database]:
    """The server's own, seen from beside."""
    db = Database(sqlite_url(server.home / "windlass.db"))
    try:
        yield db
    finally:
        db.close()


def _size(server: ServerProcess) -> int:
    """Of the database file, with all that is still in its log."""
    path = server.home / "windlass.db"
    with contextlib.closing(sqlite3.connect(path, timeout=30.0)) as connection:
        connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
    return path.stat().st_size


def _stored(db: Database, ids: list[str]) -> int:
    """What the runs themselves logged."""
    own = summaries.c.name.not_like(f"{PREFIX}%")
    query = select(func.sum(summaries.c.points)).where(summaries.c.run_id.in_(ids), own)
    with db.read() as tx:
        return int(tx.execute(query).scalar() or 0)


def _packed(db: Database) -> float:
    """Bytes of a point in chunks and tails, without what the database adds."""
    with db.read() as tx:
        sizes = [func.length(chunks.c[name]) for name in ("coarse", "groups", "data")]
        packed = tx.execute(select(func.sum(chunks.c.points), func.sum(sizes[0] + sizes[1] + sizes[2]))).one()
        loose = tx.execute(select(func.sum(tails.c.points), func.sum(tails.c.size))).one()
    return ((packed[1] or 0) + (loose[1] or 0)) / ((packed[0] or 0) + (loose[0] or 0))


def _wait(condition: Callable[[], bool], what: str, patience_s: float = _PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience_s:.0f} s for {what}")
        time.sleep(0.1)


def add_load(report: Report, load: Load) -> None:
    p99 = percentile(load.call_us, 0.99)
    report.figures |= {
        "native_points_per_s": Figure(value=load.points_per_s, target=100_000, better="higher"),
        "bytes_per_point": Figure(value=load.bytes_per_point, target=4.0, better="lower"),
        "log_call_p99_us": Figure(value=p99, target=50.0, better="lower"),
    }
    report.tables.append(
        Table(
            title=f"{load.runs} runs log {METRICS} metrics a step for {load.lasted_s:.0f} s through `job.log`",
            header=("what", "value"),
            rows=[
                ["points", load.points],
                ["points/s until all are stored", load.points_per_s],
                ["stored, seconds after the last call", load.stored_after_s - load.lasted_s],
                ["bytes/point, the whole database file", load.bytes_per_point],
                ["bytes/point, packed columns alone", load.packed_bytes_per_point],
                ["job.log p50, microseconds", percentile(load.call_us, 0.5)],
                ["job.log p99, microseconds", p99],
                ["server: cpu_percent (100 is one core)", load.server_cpu_percent],
                ["server: rss_mb", load.server_rss_mb],
            ],
        )
    )
    report.notes.append(
        "A real server and the local engine, on SQLite; runs, supervisors and server share the machine. Losses and "
        "norms are single floats with noise, as tensors give them; the rest counts, is constant or is rounded."
    )


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--points-per-s", type=float, default=120_000.0, help="that all runs together try to log")
    parser.add_argument(
        "--mlflow-python", type=Path, help="python of an environment with mlflow: compare with its server"
    )
    parser.add_argument(
        "--databases",
        nargs="+",
        choices=("sqlite", "postgres"),
        default=("sqlite", "postgres"),
        help="of the comparison",
    )
    parser.add_argument("--no-native", action="store_true", help="only the comparison")
    given: argparse.Namespace = parser.parse_args()
    report = Report(bench="tracking")
    with workspace() as folder:
        if not given.no_native:
            with running_server(folder / "home") as server:
                lasts_s, runs = (10.0, 50) if given.quick else (60.0, 50)
                tell(f"{runs} runs log for {lasts_s:.0f} s")
                add_load(
                    report,
                    measure_load(server, folder, runs=runs, lasts_s=lasts_s, points_per_s=given.points_per_s),
                )
                took = measure_chart(server, rounds=20 if given.quick else 100)
            report.figures["chart_p95_ms"] = Figure(value=percentile(took, 0.95), target=50.0, better="lower")
            report.notes.append(
                f"A chart of {_CHART_POINTS} points in {_DRAWN}: {statistics.median(took):.1f} ms (median), the least "
                "and greatest of every stretch kept."
            )
        if given.mlflow_python:
            from bench.mlflow_arms import compare

            compare(report, folder, given.mlflow_python, quick=given.quick, databases=given.databases)
    finish(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
