"""MLflow's own server against ours, with the same client (bench/programs/mlflow_client.py), on SQLite and PostgreSQL.
All are up at the same time, and every measurement is made of one and then of the others: of these two, and of a server
that answers at once, which shows what the client takes by itself.
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
from typing import Any, Literal, TypeAlias

from bench import filling
from bench.at_once import AtOnce, answering_at_once
from bench.harness import Figure, Report, Table, percentile, tell
from windlass.agent.ports import free_port
from windlass.db.database import sqlite_url
from windlass.testing.postgres import PostgresUnavailable, running_postgres
from windlass.testing.servers import running_server

CLIENT = Path(__file__).resolve().parent / "programs" / "mlflow_client.py"
_READY_S = 300.0
Better: TypeAlias = Literal["lower", "higher"]
# As bench/programs/mlflow_client.py searches.
SEARCH = {
    "filter": "metrics.m3 < 0.5 and metrics.m7 > 0.2",
    "order_by": ["metrics.m5 DESC"],
    "max_results": 100,
}


class MlflowUnavailable(Exception):
    """Its server does not start: on PostgreSQL its environment needs psycopg2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything."""

    clients: Sequence[int] = (1, 4, 8)
    batch_s: float = 6.0
    calls: int = 200
    runs: Sequence[int] = (1_000, 10_000)
    searches: int = 5
    chart: int = 1_000_000
    rounds: int = 2
    megabytes: int = 200


QUICK = Size(batch_s=4.0, calls=100, rounds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    key: str
    what: str
    ours: float
    theirs: float
    at_once: float | None  # with a server that takes no time; None: not measured
    better: Better
    target: float

    def cells(self) -> list[object]:
        bound = "" if self.at_once is None else self.at_once / self.theirs
        return [self.what, self.ours, self.theirs, self.ours / self.theirs, self.target, bound]


def compare(report: Report, folder: Path, python: Path, *, quick: bool, databases: Sequence[str]) -> None:
    size = QUICK if quick else Size()
    if "sqlite" in databases:
        theirs = f"sqlite:///{folder}/mlflow.db"
        _compare(report, folder / "sqlite", python, size, "SQLite", theirs, None)
    if "postgres" not in databases:
        return
    try:
        with running_postgres(durable=True) as postgres:
            theirs, ours = postgres.create_database(), postgres.create_database()
            _compare(report, folder / "postgres", python, size, "PostgreSQL", theirs, ours)
    except (PostgresUnavailable, MlflowUnavailable) as error:
        report.notes.append(f"PostgreSQL was not measured: {error}")


def _compare(report: Report, folder: Path, python: Path, size: Size, name: str, theirs: str, ours: str | None) -> None:
    folder.mkdir()
    environ = {"WINDLASS_DATABASE_URL": ours} if ours else {}
    port = free_port()
    with (
        running_server(folder / "home", arguments=["--no-auth"], environ=environ) as server,
        _running_mlflow(folder, python, theirs) as url,
        answering_at_once(port) as at_once,
    ):
        contest = Contest(
            python=python,
            size=size,
            urls={"windlass": server.url, "mlflow": url, "at once": at_once.url},
            ours=ours or sqlite_url(server.home / "windlass.db"),
            theirs=theirs,
            at_once=at_once,
        )
        rows = list(contest.rows())
    for row in rows:
        figure = Figure(value=row.ours / row.theirs, target=row.target, better=row.better)
        report.figures[row.key if ours is None else f"{row.key}_on_postgres"] = figure
    report.tables.append(
        Table(
            title=f"The mlflow client with either server, {name}",
            header=("what", "windlass", "mlflow", "ratio", "target", "ratio of a server that takes no time"),
            rows=[row.cells() for row in rows],
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    python: Path
    size: Size
    urls: Mapping[str, str]
    ours: str  # database
    theirs: str  # as our driver is told of it
    at_once: AtOnce

    def rows(self) -> Iterator[Row]:
        for part in (self._logging, self._starts, self._searches, self._chart, self._artifacts):
            for row in part():
                bound = "" if row.at_once is None else f"; at once {row.at_once:.4g}"
                tell(f"{row.what}: {row.ours:.4g} against {row.theirs:.4g}{bound}")
                yield row

    def _logging(self) -> Iterator[Row]:
        self._learn("/experiments/get-by-name", "GET", "experiments/get-by-name?experiment_name=Default")
        self._learn("/runs/create", "POST", "runs/create", {"experiment_id": "0", "start_time": 1})
        for clients in self.size.clients:
            found = self._all("log_batch", clients, self.size.batch_s)
            rates = {arm: statistics.median(rates) for arm, rates in found.items()}
            yield _row(f"ingest_vs_mlflow_{clients}", f"log_batch, {clients} clients, points/s", rates, "higher", 10.0)
        took = _joined(self._all("log_metric", self.size.calls))
        for share in (0.5, 0.99):
            ms = {arm: 1000 * percentile(found, share) for arm, found in took.items()}
            what = f"log_metric_p{share * 100:.0f}"
            yield _row(f"{what}_vs_mlflow", f"{what.replace('_p', ' p')}, ms", ms, "lower", 0.2)

    def _starts(self) -> Iterator[Row]:
        took = _joined(self._all("start_run", self.size.calls // 4))
        yield _row("start_run_vs_mlflow", "start of a run, ms", _medians(took), "lower", 1 / 3)

    def _searches(self) -> Iterator[Row]:
        for count in self.size.runs:
            ours, theirs = (self._ask(arm, "new_experiment", f"search-{count}") for arm in ("windlass", "mlflow"))
            filling.fill_runs(self.ours, ours, count)
            filling.fill_theirs(self.python, _for_mlflow(self.theirs), "runs", theirs, count)
            filling.let_settle(self.ours, self.theirs)
            self._learn("/runs/search", "POST", "runs/search", {"experiment_ids": [ours], **SEARCH})
            took = _joined(self._all("search_runs", count, self.size.searches))
            key = "search_runs_vs_mlflow" if count == 1_000 else f"search_runs_{count}_vs_mlflow"
            yield _row(key, f"search_runs over {count} runs of 20 metrics, ms", _medians(took), "lower", 0.1)

    def _chart(self) -> Iterator[Row]:
        ids = {arm: self._ask(arm, "begin_run") for arm in ("windlass", "mlflow")}
        filling.fill_chart(self.ours, ids["windlass"], self.size.chart)
        filling.fill_theirs(self.python, _for_mlflow(self.theirs), "chart", ids["mlflow"], self.size.chart)
        filling.let_settle(self.ours, self.theirs)
        took = {arm: self._ask(arm, "chart", run_id, 10) for arm, run_id in ids.items()}
        ms = {arm: 1000 * percentile(found, 0.95) for arm, found in took.items()}
        yield _row("chart_1m_vs_mlflow", f"chart of {self.size.chart} points, p95, ms", ms, "lower", 1 / 20)

    def _artifacts(self) -> Iterator[Row]:
        moved = self._all("artifact", self.size.megabytes, arms=("windlass", "mlflow"))
        for place, way in enumerate(("up", "down")):
            seconds = {arm: statistics.median(part[place] for part in parts) for arm, parts in moved.items()}
            yield _row(
                f"artifact_{way}_vs_mlflow", f"artifact of {self.size.megabytes} MB {way}, s", seconds, "lower", 1.0
            )

    def _all(self, *words: object, arms: Sequence[str] | None = None) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {arm: [] for arm in arms or self.urls}
        for _ in range(self.size.rounds):
            for arm, parts in found.items():
                parts.append(self._ask(arm, *words))
        return found

    def _ask(self, arm: str, *words: object) -> Any:
        command = [str(self.python), str(CLIENT), *map(str, words)]
        environ = {**os.environ, "MLFLOW_TRACKING_URI": self.urls[arm], "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=900)
        if done.returncode != 0:
            raise RuntimeError(f"{arm}: {words} failed:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.strip().rpartition("\n")[2])

    def _learn(self, part: str, method: str, path: str, body: object = None) -> None:
        """Let the server that answers at once say what ours says."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        url = f"{self.urls['windlass']}/api/2.0/mlflow/{path}"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            self.at_once.answers[part] = answer.read()


def _row(key: str, what: str, values: Mapping[str, float], better: Better, target: float) -> Row:
    return Row(
        key=key,
        what=what,
        ours=values["windlass"],
        theirs=values["mlflow"],
        at_once=values.get("at once"),
        better=better,
        target=target,
    )


def _joined(found: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, list[float]]:
    return {arm: [one for part in parts for one in part] for arm, parts in found.items()}


def _medians(took: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {arm: 1000 * statistics.median(found) for arm, found in took.items()}


@contextlib.contextmanager
def _running_mlflow(folder: Path, python: Path, database: str) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(python), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", _for_mlflow(database), "--artifacts-destination", str(folder / "artifacts")]
    # Else a busy machine makes its workers look dead while they start.
    command += ["--uvicorn-opts", "--timeout-worker-healthcheck 120"]
    with (folder / "mlflow.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            # Without the eight processes for its own jobs, which track nothing.
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait(url, process, folder / "mlflow.log")
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _for_mlflow(database: str) -> str:
    return database.replace("postgresql+psycopg://", "postgresql+psycopg2://")


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{url}/health", timeout=2):
            return
        time.sleep(0.2)
    raise MlflowUnavailable(f"MLflow's server does not answer:\n{log.read_text()[-2000:]}")
