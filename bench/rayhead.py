"""A Ray head of our own on loopback, as somebody who submits jobs to a local Ray has running."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.harness import BIN, tell
from windlass.agent.ports import free_ports

_PATIENCE_S = 120.0
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHead:
    jobs: str  # the address for `ray job submit`
    gcs: str  # the cluster's


@contextlib.contextmanager
def running_ray(folder: Path) -> Iterator[RayHead]:
    """The head has taken a job when the block begins; it is stopped after it, and
    what it leaves behind is ended with the workspace."""
    gcs, client, dashboard = free_ports(3)
    address = f"http://127.0.0.1:{dashboard}"
    log = folder / "ray.log"
    command = [
        str(BIN / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={gcs}",
        f"--ray-client-server-port={client}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
        f"--num-cpus={os.cpu_count()}", "--disable-usage-stats", f"--temp-dir={folder / 'r'}",
    ]  # fmt: skip
    tell("starting Ray")
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _await_answer(address, process, log)
        yield RayHead(jobs=address, gcs=f"127.0.0.1:{gcs}")
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        process.kill()
        process.wait()


def _await_answer(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"ray start ended with {process.returncode}:\n{log.read_text(errors='replace')}")
        # It answers before it can take a job.
        job = urllib.request.Request(f"{address}/api/jobs/", b'{"entrypoint": "true"}', _JSON)
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            opener.open(job, timeout=10) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise TimeoutError(f"Ray does not answer:\n{log.read_text(errors='replace')}")
