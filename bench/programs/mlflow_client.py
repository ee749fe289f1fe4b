"""One measurement with the real mlflow client, in an environment that has it; prints JSON. The server is in
MLFLOW_TRACKING_URI. Usage: mlflow_client.py WHAT [NUMBER ...]
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import urllib.parse
import urllib.request

from mlflow import MlflowClient
from mlflow.entities import Metric

_BATCH = 1_000  # what the client takes at most
_METRICS = 20


def new_run(client: MlflowClient, name: str = "bench") -> str:
    found = client.get_experiment_by_name(name)
    experiment = found.experiment_id if found else client.create_experiment(name)
    return client.create_run(experiment).info.run_id


def batch(start: int) -> list[Metric]:
    now = int(time.time() * 1000)
    rows = range(start, start + _BATCH // _METRICS)
    return [Metric(f"m{n}", random.random(), now + row, row) for row in rows for n in range(_METRICS)]


def _send(run_id: str, lasts_s: float, start: multiprocessing.Barrier, sent: multiprocessing.Queue) -> None:  # type: ignore[valid-type, type-arg]
    client = MlflowClient()
    client.log_batch(run_id, metrics=batch(0))
    start.wait()  # type: ignore[attr-defined]
    began, count = time.monotonic(), 1
    while time.monotonic() - began < lasts_s:
        client.log_batch(run_id, metrics=batch(count * _BATCH // _METRICS))
        count += 1
    sent.put(((count - 1) * _BATCH, time.monotonic() - began))


def log_batch(clients: str, lasts_s: str) -> object:
    """Points a second of so many clients at once."""
    context = multiprocessing.get_context("fork")
    barrier, sent = context.Barrier(int(clients)), context.Queue()
    ids = [new_run(MlflowClient()) for _ in range(int(clients))]
    found = [context.Process(target=_send, args=(run_id, float(lasts_s), barrier, sent)) for run_id in ids]
    for process in found:
        process.start()
    told = [sent.get(timeout=120) for _ in found]
    for process in found:
        process.join()
    return sum(points / took_s for points, took_s in told)


def log_metric(count: str) -> object:
    client = MlflowClient()
    run_id = new_run(client)
    return [
        _timed(lambda step=step: client.log_metric(run_id, "loss", step / 7, step=step)) for step in range(int(count))
    ]


def start_run(count: str) -> object:
    client = MlflowClient()
    new_run(client)
    return [_timed(lambda: new_run(client)) for _ in range(int(count))]


def new_experiment(name: str) -> object:
    return MlflowClient().create_experiment(name)


def begin_run() -> object:
    return new_run(MlflowClient())


def search_runs(count: str, times: str) -> object:
    client = MlflowClient()
    experiment = client.get_experiment_by_name(f"search-{count}")

    def search() -> None:
        found = client.search_runs(
            [experiment.experiment_id],
            "metrics.m3 < 0.5 and metrics.m7 > 0.2",
            order_by=["metrics.m5 DESC"],
            max_results=100,
        )
        if len(found) != min(100, len(found)) or not found:
            raise RuntimeError("nothing was found")

    search()
    return [_timed(search) for _ in range(int(times))]


def chart(run_id: str, times: str) -> object:
    query = urllib.parse.urlencode({"run_ids": run_id, "metric_key": "loss", "max_results": 320})
    url = f"{os.environ['MLFLOW_TRACKING_URI']}/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?{query}"

    def draw() -> None:
        with urllib.request.urlopen(url, timeout=300) as answer:
            if len(json.load(answer)["metrics"]) < 100:
                raise RuntimeError("the chart is empty")

    draw()
    return [_timed(draw) for _ in range(int(times))]


def artifact(megabytes: str) -> object:
    """Seconds up and down."""
    client = MlflowClient()
    run_id = new_run(client)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "big.bin")
        with open(path, "wb") as file:
            for _ in range(int(megabytes)):
                file.write(os.urandom(1 << 20))
        up = _timed(lambda: client.log_artifact(run_id, path))
        down = _timed(lambda: client.download_artifacts(run_id, "big.bin", folder + "/"))
    return [up, down]


def _timed(deed) -> float:  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    deed()
    return time.perf_counter() - began


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    known = (log_batch, log_metric, start_run, new_experiment, search_runs, begin_run, chart, artifact)
    print(json.dumps({each.__name__: each for each in known}[what](*arguments)))
