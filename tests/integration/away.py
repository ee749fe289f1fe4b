"""Nodes elsewhere, without a cluster: relays as processes of this machine, against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.agent import kernel
from windlass.agent.ports import free_port
from windlass.core.clock import SystemClock
from windlass.core.resources import NodeShare, Placement
from windlass.db.database import Database
from windlass.engines.contract import Launch, NodeReport
from windlass.engines.remote.bootstrap import render_bootstrap, render_node_environ
from windlass.engines.remote.observing import stored_logs
from windlass.engines.remote.plans import render_remote_plans
from windlass.nodes.book import DatabaseNodeBook
from windlass.runs.sealing import Seal
from windlass.testing.servers import ServerProcess, start_server
from windlass.tracking.logs import LogCursor, LogRecord, find_logs, read_page
from windlass.tracking.storedlogs import StoredLogs

PATIENCE_S = 40.0


class Away:
    """A server that only answers requests, the engines' book over its database, and the relays that were started."""

    def __init__(self, folder: Path, database_url: str, **environ: str) -> None:
        self.folder = folder
        self.database_url = database_url
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = self.start_server(**environ)
        self.db = Database(database_url)
        self.book = DatabaseNodeBook(self.db, Seal(folder / "home" / "secret.key"), SystemClock())
        self.relays: list[subprocess.Popen[bytes]] = []
        with self.server.client() as client:
            spec = {"command": "true", "code": None}
            answer = client.post("/api/runs", json={"spec": spec})
            assert answer.is_success, answer.text
            self.run_id: str = answer.json()["id"]
        self._attempts = 0

    def start_server(self, **environ: str) -> ServerProcess:
        self.server = start_server(
            self.folder / "home",
            arguments=["--role", "api", "--port", str(self.port)],
            environ={"WINDLASS_DATABASE_URL": self.database_url, **environ},
        )
        return self.server

    def prepare(
        self,
        *argv: str,
        nodes: int = 1,
        workers: int = 1,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        code_digest: str | None = None,
        grace_s: float = 5.0,
    ) -> str:
        self._attempts += 1
        attempt_id = f"{self.run_id}.{self._attempts}"
        launch = Launch(
            run_id=self.run_id,
            attempt_id=attempt_id,
            attempt=self._attempts,
            placement=Placement(
                engine="away", shares=tuple(NodeShare(node=f"n{i}", cpus=1.0, memory_bytes=0) for i in range(nodes))
            ),
            argv=argv,
            workers_per_node=workers,
            self_launching=False,
            env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **(env or {})},
            secrets=secrets or {},
            code_digest=code_digest,
            grace_s=grace_s,
        )
        self.book.prepare(attempt_id, render_remote_plans(launch), launch.secrets)
        return attempt_id

    def start(
        self,
        attempt_id: str,
        rank: int = 0,
        *,
        environ: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        python: str = sys.executable,
        within: tuple[str, ...] = (),
        user: int | None = None,
    ) -> subprocess.Popen[bytes]:
        told = render_node_environ(
            server_url=self.url, attempt_id=attempt_id, node_rank=rank, token=self.book.token(attempt_id, rank)
        )
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with (self.folder / f"relay-{len(self.relays)}.log").open("wb") as log:
            process = subprocess.Popen(
                [*within, python, "-c", render_bootstrap(), *arguments],
                env={**bare, "TMPDIR": str(scratch), **told, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stderr=log,
                user=user,
            )
        self.relays.append(process)
        return process

    def report(self, attempt_id: str, rank: int = 0) -> NodeReport:
        return self.book.load([attempt_id])[attempt_id][rank]

    def outcome(self, attempt_id: str, rank: int = 0) -> Mapping[str, Any]:
        """As soon as it is there."""
        await_that(lambda: self.report(attempt_id, rank).outcome is not None, self.describe)
        found = self.report(attempt_id, rank).outcome
        assert found is not None
        return found

    def running(self, attempt_id: str, rank: int = 0) -> Mapping[str, Any]:
        def is_running() -> bool:
            status = self.report(attempt_id, rank).status
            return status is not None and status["state"] == "running"

        await_that(is_running, self.describe)
        status = self.report(attempt_id, rank).status
        assert status is not None
        return status

    def logs(self, attempt_id: str, *, nodes: int = 1) -> list[LogRecord]:
        files = find_logs({1: stored_logs(attempt_id, nodes)}, stored=StoredLogs(self.db, self.blobs()))
        return read_page(files, LogCursor(), limit=10**6)

    def texts(self, attempt_id: str, *, nodes: int = 1) -> list[str]:
        return [record.text for record in self.logs(attempt_id, nodes=nodes)]

    def blobs(self) -> Any:
        from windlass.blobs.local import LocalBlobs

        return LocalBlobs(self.folder / "home" / "blobs")

    def describe(self) -> str:
        """What the relays said, for a test that fails."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("relay-*.log")))

    def close(self) -> None:
        for relay in self.relays:
            if relay.poll() is None:
                relay.kill()
            relay.wait()
        if self.server.process.poll() is None:
            self.server.kill()
        self.db.close()


@contextmanager
def away(folder: Path, database_url: str, **environ: str) -> Iterator[Away]:
    found = Away(folder, database_url, **environ)
    try:
        yield found
    finally:
        found.close()


def await_that(
    condition: Callable[[], bool], explain: Callable[[], str] = str, *, timeout_s: float = PATIENCE_S
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it does not come to that:\n{explain()}")
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    found = kernel.stat(pid)
    return found is None or found.state in "ZX"
