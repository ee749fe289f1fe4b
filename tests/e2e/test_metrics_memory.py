"""The server's memory stays small while ten thousand runs are written and charts of them are read."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from windlass.testing.servers import ServerProcess, running_server

METRICS = 50
STEPS = 4
MOST_BYTES = 400e6
API = "/api/2.0/mlflow"


class Writers:
    """A few clients that create runs and log to them; what they have written so far can be read."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.done: list[str] = []
        self.peak = 0

    def write(self, count: int) -> None:
        with self._server.client(timeout_s=120) as client:
            for number in range(count):
                created = client.post(f"{API}/runs/create", json={"experiment_id": "0", "start_time": 1}).json()
                run_id = created["run"]["info"]["run_id"]
                metrics = [
                    {"key": f"m{name}", "value": random.random(), "timestamp": 1_000 + step, "step": step}
                    for step in range(STEPS)
                    for name in range(METRICS)
                ]
                client.post(f"{API}/runs/log-batch", json={"run_id": run_id, "metrics": metrics}).raise_for_status()
                self.done.append(run_id)
                if number % 20 == 0:
                    self.peak = max(self.peak, self._server.rss_bytes())

    def read(self, stop: threading.Event) -> int:
        charts = 0
        with self._server.client(timeout_s=120) as client:
            while not stop.is_set():
                if not self.done:
                    stop.wait(0.05)
                    continue
                some = random.choices(self.done, k=20)
                query = [("run_ids", run_id) for run_id in some] + [("metric_key", "m7"), ("max_results", "320")]
                answer = client.get(
                    "/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval", params=httpx.QueryParams(query)
                )
                answer.raise_for_status()
                assert answer.json()["metrics"]
                charts += 1
        return charts


@pytest.mark.parametrize("runs", [200, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_memory_stays_small_while_runs_are_written_and_charts_are_read(tmp_path: Path, runs: int) -> None:
    clients, stop = 4, threading.Event()
    with running_server(tmp_path / "home") as server:
        writers = Writers(server)
        with ThreadPoolExecutor(clients + 1) as pool:
            reading = pool.submit(writers.read, stop)
            try:
                for writing in [pool.submit(writers.write, runs // clients) for _ in range(clients)]:
                    writing.result()
            finally:
                stop.set()
            assert reading.result() > 0
        assert len(writers.done) == runs
        assert max(writers.peak, server.rss_bytes()) < MOST_BYTES
