"""MLflow's own server against ours, with the same client (bench/programs/mlflow_client.py), on SQLite and PostgreSQL.
Both are up at the same time, and every measurement is made of one and then of the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import Figure, Report, Table, free_ports, percentile, tell
from windlass.testing.postgres import PostgresUnavailable, running_postgres
from windlass.testing.servers import running_server

CLIENT = Path(__file__).resolve().parent / "programs" / "mlflow_client.py"
_READY_S = 120.0


class MlflowUnavailable(Exception):
    """Its server does not start: on PostgreSQL its environment needs psycopg2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything."""

    clients: Sequence[int] = (1, 4, 8)
    batch_s: float = 10.0
    calls: int = 300
    runs: Sequence[int] = (1_000, 10_000)
    chart: int = 1_000_000
    rounds: int = 3
    megabytes: int = 200


QUICK = Size(clients=(1, 4), batch_s=4.0, calls=100, runs=(200,), chart=100_000, rounds=1, megabytes=50)


def compare(report: Report, folder: Path, python: Path, *, quick: bool) -> None:
    size = QUICK if quick else Size()
    _compare(report, folder / "sqlite", python, size, "SQLite", f"sqlite:///{folder}/mlflow.db", None)
    try:
        with running_postgres(durable=True) as postgres:
            theirs, ours = postgres.create_database(), postgres.create_database()
            _compare(report, folder / "postgres", python, size, "PostgreSQL", theirs, ours)
    except (PostgresUnavailable, MlflowUnavailable) as error:
        report.notes.append(f"PostgreSQL was not measured: {error}")


def _compare(report: Report, folder: Path, python: Path, size: Size, name: str, theirs: str, ours: str | None) -> None:
    folder.mkdir()
    environ = {"WINDLASS_DATABASE_URL": ours} if ours else {}
    with (
        running_server(folder / "home", arguments=["--no-auth"], environ=environ) as server,
        _running_mlflow(folder, python, theirs) as url,
    ):
        arms = {"windlass": server.url, "mlflow": url}
        rows = _measure(arms, python, size)
    for key, _, ours_s, theirs_s, better, target in rows:
        figure = Figure(value=ours_s / theirs_s, target=target, better=better)
        report.figures[f"{name.lower()}_{key}_vs_mlflow"] = figure
    report.tables.append(
        Table(
            title=f"The mlflow client with either server, {name}",
            header=("what", "windlass", "mlflow", "ratio"),
            rows=[[what, mine, other, mine / other] for _, what, mine, other, _, _ in rows],
        )
    )


def _measure(arms: Mapping[str, str], python: Path, size: Size) -> list[Any]:
    def ask(arm: str, *words: object) -> Any:
        command = [str(python), str(CLIENT), *map(str, words)]
        environ = {**os.environ, "MLFLOW_TRACKING_URI": arms[arm], "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=3_600)
        if done.returncode != 0:
            raise RuntimeError(f"{arm}: {words} failed:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.strip().rpartition("\n")[2])

    def both(*words: object) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {arm: [] for arm in arms}
        for _ in range(size.rounds):
            for arm in arms:
                found[arm].append(ask(arm, *words))
        return found

    rows: list[Any] = []

    def add(key: str, what: str, values: Mapping[str, float], better: str, target: float) -> None:
        rows.append((key, what, values["windlass"], values["mlflow"], better, target))
        tell(f"{what}: {values['windlass']:.4g} against {values['mlflow']:.4g}")

    for clients in size.clients:
        rates = {arm: statistics.median(found) for arm, found in both("log_batch", clients, size.batch_s).items()}
        add(f"log_batch_{clients}", f"log_batch, {clients} clients, points/s", rates, "higher", 10.0)
    calls = {arm: [s for part in found for s in part] for arm, found in both("log_metric", size.calls).items()}
    for share, target in ((0.5, 0.2), (0.99, 0.2)):
        ms = {arm: 1000 * percentile(found, share) for arm, found in calls.items()}
        add(f"log_metric_p{share * 100:.0f}", f"log_metric p{share * 100:.0f}, ms", ms, "lower", target)
    starts = both("start_run", size.calls // 5)
    ms = {arm: 1000 * statistics.median(s for part in found for s in part) for arm, found in starts.items()}
    add("start_run", "start of a run, ms", ms, "lower", 1 / 3)
    for count in size.runs:
        for arm in arms:
            ask(arm, "fill_runs", count)
        found = both("search_runs", count, 10)
        ms = {arm: 1000 * statistics.median(s for part in parts for s in part) for arm, parts in found.items()}
        add(f"search_{count}", f"search_runs over {count} runs of 20 metrics, ms", ms, "lower", 0.1)
    ids = {arm: ask(arm, "fill_chart", size.chart) for arm in arms}
    drawn = {arm: 1000 * percentile(ask(arm, "chart", ids[arm], 10), 0.95) for arm in arms}
    add("chart_p95", f"chart of {size.chart} points, p95, ms", drawn, "lower", 1 / 20)
    moved = both("artifact", size.megabytes)
    for place, way in enumerate(("up", "down")):
        seconds = {arm: statistics.median(part[place] for part in parts) for arm, parts in moved.items()}
        add(f"artifact_{way}", f"artifact of {size.megabytes} MB {way}, s", seconds, "lower", 1.0)
    return rows


@contextlib.contextmanager
def _running_mlflow(folder: Path, python: Path, database: str) -> Iterator[str]:
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [str(python), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", _for_mlflow(database), "--artifacts-destination", str(folder / "artifacts")]
    with (folder / "mlflow.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(url, process, folder / "mlflow.log")
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _for_mlflow(database: str) -> str:
    return database.replace("postgresql+psycopg://", "postgresql://")


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{url}/health", timeout=2):
            return
        time.sleep(0.2)
    raise MlflowUnavailable(f"MLflow's server does not answer:\n{log.read_text()[-2000:]}")
