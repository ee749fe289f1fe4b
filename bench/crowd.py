"""How quickly a server answers while a thousand runs report to it and a hundred thousand lie behind it."""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from bench import history
from bench.crowded_server import NODES
from bench.harness import percentile, tell
from windlass.db.database import database_url
from windlass.testing.servers import ServerProcess, running_server

EVERY_S = 10.0  # each live run reports this often
READERS = 4
_REPORTERS = 16  # so many reports may be on their way at once: slow answers must not thin them out
_DEPTH_PAGES = 40
_PAGE = 500
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(slots=True, kw_only=True)
class Latencies:
    by_kind: dict[str, list[float]] = field(default_factory=dict)  # seconds

    def of(self, prefix: str) -> list[float]:
        return [value for kind, values in self.by_kind.items() if kind.startswith(prefix) for value in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    latencies: Latencies
    reports_per_s: float
    report_p99_ms: float
    quiet_cpu_percent: float  # reports only
    cpu_percent: float  # reports and readers
    rss_mb: float
    reads_per_s: float


def measure_crowd(folder: Path, *, live: int, finished: int, read_s: float, database: str | None) -> Crowd:
    home = folder / "crowd"
    home.mkdir()
    environ = {"PYTHONPATH": str(_ROOT), "WINDLASS_DATABASE_URL": database or database_url({}, home)}
    began = time.monotonic()
    finished_ids = history.fill(environ["WINDLASS_DATABASE_URL"], NODES, count=finished, until=time.time())
    tell(f"inserted {finished} finished runs in {time.monotonic() - began:.0f} s")
    with running_server(home, module="bench.crowded_server", environ=environ) as server:
        began = time.monotonic()
        live_ids = _submit(server, live)
        tell(f"{live} runs are running after {time.monotonic() - began:.0f} s")
        with _reporting(server, live_ids) as reports:
            time.sleep(EVERY_S + 2.0)  # every run has reported once
            quiet = _cpu_percent(server, max(5.0, read_s / 4))
            paths = _paths(server, live_ids, finished_ids)
            cpu_began, clock = server.cpu_s(), time.monotonic()
            latencies = _read(server, paths, read_s)
            took = time.monotonic() - clock
            cpu = 100 * (server.cpu_s() - cpu_began) / took
            rss_mb = server.rss_bytes() / 1e6
        sent = reports()
    return Crowd(
        latencies=latencies,
        reports_per_s=sent["per_s"],
        report_p99_ms=sent["p99_ms"],
        quiet_cpu_percent=quiet,
        cpu_percent=cpu,
        rss_mb=rss_mb,
        reads_per_s=sum(map(len, latencies.by_kind.values())) / took,
    )


# ---- the live runs -----------------------------------------------------------------------------------------------


def _submit(server: ServerProcess, count: int) -> list[str]:
    with server.client() as client:

        def one(number: int) -> str:
            spec = {**history.SPEC, "name": f"live-{number}"}
            return str(client.post("/api/runs", json={"spec": spec}).raise_for_status().json()["id"])

        with ThreadPoolExecutor(READERS) as pool:
            ids = list(pool.map(one, range(count)))
        deadline = time.monotonic() + 120
        while (running := client.get("/api/cluster").raise_for_status().json()["running"]) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {running} of {count} runs are running")
            time.sleep(0.2)
    return ids


class Endpoint:
    """One connection that is kept open: the least that a client can cost on a machine it shares with the server."""

    def __init__(self, url: str, token: str) -> None:
        where = urlsplit(url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[float, bytes]:
        """Seconds, and the answer."""
        began = time.perf_counter()
        self._connection.request(method, path, body=body, headers=self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        took = time.perf_counter() - began
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
        return took, content

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def _reporting(server: ServerProcess, run_ids: Sequence[str]) -> Iterator[Any]:
    """All runs report, from a process of their own. Yields what tells, after the block, how that went."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_report, args=(server.url, server.token, list(run_ids), theirs), daemon=True)
    process.start()
    result: dict[str, float] = {}
    try:
        yield lambda: result
        ours.send("stop")
        if not ours.poll(60):
            raise TimeoutError("the reporters do not end")
        answer = ours.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"a report failed: {answer}")
        result.update(answer)
    finally:
        process.kill()
        process.join()


def _report(url: str, token: str, run_ids: Sequence[str], control: Connection) -> None:
    stop = threading.Event()
    began = time.monotonic()
    with ThreadPoolExecutor(_REPORTERS) as pool:
        lanes = [
            pool.submit(_report_lane, Endpoint(url, token), run_ids[lane::_REPORTERS], began, stop)
            for lane in range(_REPORTERS)
        ]
        control.recv()
        stop.set()
        try:
            times = [took for lane in lanes for took in lane.result()]
        except Exception as error:
            control.send(repr(error))
            return
    control.send({"per_s": len(times) / (time.monotonic() - began), "p99_ms": 1000 * percentile(times, 0.99)})


def _report_lane(endpoint: Endpoint, run_ids: Sequence[str], began: float, stop: threading.Event) -> list[float]:
    """Each run in turn, evenly over the interval: ten steps with three metrics a report."""
    times: list[float] = []
    turn = 0
    while not stop.wait(max(0.0, began + turn * EVERY_S / len(run_ids) - time.monotonic())):
        cycle, index = divmod(turn, len(run_ids))
        now = time.time()
        points = [
            {
                "step": 10 * cycle + step,
                "at": now - 10 + step,
                "total": 100_000,
                "values": {"loss": 3.0 / (1 + turn), "accuracy": 0.5, "tokens_per_s": 1.2e5},
            }
            for step in range(10)
        ]
        body = json.dumps({"source": "rank-0", "seq": 10 * cycle, "points": points}).encode()
        times.append(endpoint.ask("POST", f"/api/runs/{run_ids[index]}/metrics", body)[0])
        turn += 1
    endpoint.close()
    return times


# ---- the readers ---------------------------------------------------------------------------------------------------


def _paths(server: ServerProcess, live: Sequence[str], finished: Sequence[str]) -> dict[str, list[str]]:
    """What is asked for, by kind."""
    endpoint = Endpoint(server.url, server.token)
    cursor = ""
    for _ in range(_DEPTH_PAGES):
        page = json.loads(endpoint.ask("GET", f"/api/runs?limit={_PAGE}&cursor={quote(cursor)}")[1])
        cursor = page["next_cursor"]
    endpoint.close()
    chance = random.Random(0)
    return {
        "list: first page": ["/api/runs"],
        "list: failed runs of a project": [f"/api/runs?state=failed&project=team-{team}" for team in range(20)],
        f"list: {_DEPTH_PAGES * _PAGE} runs back": [f"/api/runs?cursor={quote(cursor)}"],
        "show: live": [f"/api/runs/{run_id}" for run_id in chance.sample(live, 200)],
        "show: finished": [f"/api/runs/{run_id}" for run_id in chance.sample(finished, 200)],
    }


def _read(server: ServerProcess, paths: dict[str, list[str]], read_s: float) -> Latencies:
    """Readers that ask again as soon as they are answered."""

    def lane(number: int) -> dict[str, list[float]]:
        endpoint = Endpoint(server.url, server.token)
        times: dict[str, list[float]] = {kind: [] for kind in paths}
        deadline = time.monotonic() + read_s
        turn = number
        while time.monotonic() < deadline:
            for kind, choices in paths.items():
                times[kind].append(endpoint.ask("GET", choices[turn % len(choices)])[0])
            turn += READERS
        endpoint.close()
        return times

    with ThreadPoolExecutor(READERS) as pool:
        lanes = list(pool.map(lane, range(READERS)))
    return Latencies(by_kind={kind: [value for times in lanes for value in times[kind]] for kind in paths})


def _cpu_percent(server: ServerProcess, over_s: float) -> float:
    began, clock = server.cpu_s(), time.monotonic()
    time.sleep(over_s)
    return 100 * (server.cpu_s() - began) / (time.monotonic() - clock)


def rows_of(latencies: Latencies) -> list[list[object]]:
    return [
        [kind, len(values), 1000 * statistics.median(values), 1000 * percentile(values, 0.99), 1000 * max(values)]
        for kind, values in latencies.by_kind.items()
    ]
