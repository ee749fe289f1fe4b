"""How the server grows with its work: N live runs on N simulated nodes, on PostgreSQL, through the real server."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, text

from bench.crowd import Endpoint
from bench.harness import percentile, tell
from windlass.testing.postgres import PostgresServer, running_postgres
from windlass.testing.servers import ServerProcess, running_server

_ROOT = Path(__file__).resolve().parents[1]
_SUBMITTERS = 8
_SPEC = {"command": ["go", "on"], "resources": {"cpus": 32}, "retry": {"max": 0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    runs: int
    submit_s: float  # from the first submission until all are running
    pass_ms: float  # one controller pass, median
    pass_p99_ms: float
    api_p50_ms: float
    api_p99_ms: float
    cpu_percent: float  # of one core, while nobody asks anything
    rss_mb: float
    database_mb: float


def measure_growth(folder: Path, counts: Sequence[int], *, watch_s: float) -> list[Growth]:
    with running_postgres(durable=True) as postgres:
        return [_measure(folder, postgres, count, watch_s=watch_s) for count in counts]


def _measure(folder: Path, postgres: PostgresServer, count: int, *, watch_s: float) -> Growth:
    url = postgres.create_database()
    environ = {"PYTHONPATH": str(_ROOT), "WINDLASS_DATABASE_URL": url, "BENCH_NODES": str(count)}
    with running_server(folder / f"growth-{count}", module="bench.crowded_server", environ=environ) as server:
        began = time.monotonic()
        run_ids = _submit_all(server, count)
        submit_s = time.monotonic() - began
        time.sleep(2.0)
        before, clock = server.cpu_s(), time.monotonic()
        passes = _watch_passes(server, watch_s)
        cpu_percent = 100 * (server.cpu_s() - before) / (time.monotonic() - clock)
        latencies = _ask(server, run_ids, watch_s)
        rss_mb = server.rss_bytes() / 1e6
        database_mb = _database_bytes(url) / 1e6
    postgres.drop_database(url)
    growth = Growth(
        runs=count,
        submit_s=submit_s,
        pass_ms=statistics.median(passes),
        pass_p99_ms=percentile(passes, 0.99),
        api_p50_ms=1000 * statistics.median(latencies),
        api_p99_ms=1000 * percentile(latencies, 0.99),
        cpu_percent=cpu_percent,
        rss_mb=rss_mb,
        database_mb=database_mb,
    )
    tell(f"{count} runs on {count} nodes: {growth}")
    return growth


def _submit_all(server: ServerProcess, count: int) -> list[str]:
    with server.client() as client:

        def one(number: int) -> str:
            body = {"spec": {**_SPEC, "name": f"run-{number}"}}
            return str(client.post("/api/runs", json=body).raise_for_status().json()["id"])

        with ThreadPoolExecutor(_SUBMITTERS) as pool:
            run_ids = list(pool.map(one, range(count)))
        deadline = time.monotonic() + 60 + count / 20
        not_running = {"state": ["queued", "starting"], "limit": 1}
        while client.get("/api/runs", params=not_running).raise_for_status().json()["runs"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {count} runs are running")
            time.sleep(0.5)
    return run_ids


def _watch_passes(server: ServerProcess, watch_s: float) -> list[float]:
    """Passes of a server that nobody asks anything: the loop makes one by itself, a second after the last."""
    time.sleep(watch_s)
    with server.client() as client:
        taken: list[float] = client.get("/api/info").raise_for_status().json()["pass_ms"]
    made = int(watch_s / (1.0 + taken[-1] / 1000))
    return taken[-max(3, made) :]


def _ask(server: ServerProcess, run_ids: Sequence[str], watch_s: float) -> list[float]:
    """Two users who look at lists and records, a request every 20 ms each."""
    times: list[float] = []
    deadline = time.monotonic() + watch_s

    def user(number: int) -> None:
        endpoint = Endpoint(server.url, server.token)
        turn = number
        while time.monotonic() < deadline:
            path = "/api/runs" if turn % 2 else f"/api/runs/{run_ids[turn * 7919 % len(run_ids)]}"
            times.append(endpoint.ask("GET", path)[0])
            turn += 1
            time.sleep(0.02)
        endpoint.close()

    users = [threading.Thread(target=user, args=(number,)) for number in range(2)]
    for thread in users:
        thread.start()
    for thread in users:
        thread.join()
    return times


def _database_bytes(url: str) -> int:
    engine = create_engine(url)
    with engine.connect() as connection:
        size = int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
    engine.dispose()
    return size
