"""Trivial runs a second, from submission to a recorded end, by Windlass and by its peers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from windlass.client import Client
from windlass.testing.servers import ServerProcess

IN_FLIGHT = 4  # submitting threads
_CPUS = 0.1  # what a run asks for, so that many may run at once
_PATIENCE_S = 600.0
_OVER = {"SUCCEEDED", "FAILED", "STOPPED"}
_LIVE = ("queued", "starting", "running", "recovering")


def windlass_rate(server: ServerProcess, folder: Path, *, count: int) -> float:
    """Through the SDK, from a few threads; the clock stops when the record shows the last one's end."""
    folder.mkdir(exist_ok=True)
    with Client(server.url, server.token) as client:
        began = time.monotonic()

        def submit(_: int) -> str:
            return client.submit(command="true", code=None, workdir=str(folder), resources={"cpus": _CPUS}).id

        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            ids = set(pool.map(submit, range(count)))
        _until(lambda: not list(client.list(state=_LIVE, limit=1)))
        took = time.monotonic() - began
        succeeded = {run.id for run in client.list(state="succeeded", limit=count)}
    if not ids <= succeeded or len(ids) != count:
        raise RuntimeError(f"{count - len(ids & succeeded)} of {count} runs did not succeed")
    return count / took


def ray_rate(address: str, *, count: int) -> float:
    """Through Ray's own JobSubmissionClient, the API behind `ray job submit`, with a few jobs in flight."""
    from ray.job_submission import JobSubmissionClient  # a heavy import, needed here only

    client: Any = JobSubmissionClient(address)
    began = time.monotonic()

    def run(_: int) -> str:
        job_id = client.submit_job(entrypoint="true")
        _until(lambda: client.get_job_status(job_id).value in _OVER)
        return str(client.get_job_status(job_id).value)

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        ends = list(pool.map(run, range(count)))
    took = time.monotonic() - began
    if set(ends) != {"SUCCEEDED"}:
        raise RuntimeError(f"Ray's jobs ended as {ends}")
    return count / took


def submitit_rate(folder: Path, *, count: int) -> float:
    """LocalExecutor with a function that does nothing, with a few jobs in flight."""
    import submitit  # needed here only

    executor = submitit.LocalExecutor(folder=folder)
    executor.update_parameters(timeout_min=5)
    began = time.monotonic()

    def run(_: int) -> bool:
        job: Any = executor.submit(bool)
        _until(lambda: job.done(force_check=True))
        return bool(job.result())

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        ends = list(pool.map(run, range(count)))
    took = time.monotonic() - began
    if any(ends):
        raise RuntimeError("bool() is False, but submitit's jobs say otherwise")
    return count / took


def _until(over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not over():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not over after {_PATIENCE_S:g} s")
        time.sleep(0.02)
