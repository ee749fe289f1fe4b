"""Starting and stopping the embedded server of a home folder, as a background process of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from windlass.agent.http1 import BadAnswer, Connection
from windlass.client.endpoint import ServerRecord, process_start, read_server_record, running_server
from windlass.core.errors import InvalidInput, ServerUnreachable, Unavailable

if TYPE_CHECKING:
    import subprocess

START_TIMEOUT_S = 15.0
_POLL_S = 0.02


def ensure_server(
    home: Path,
    *,
    options: tuple[str, ...] = (),
    timeout_s: float = START_TIMEOUT_S,
    before_start: Callable[[], None] = lambda: None,
) -> ServerRecord:
    """The home's running server, started if there is none. Two callers at once start one server.

    `options` go to `python -m windlass.server`; `before_start` is called only if a server must be started.
    """
    if (server := running_server(home)) is not None and _listens(server.url):
        return server
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InvalidInput(f"the home folder {home} cannot be made: {error.strerror}") from error
    deadline = time.monotonic() + timeout_s
    with _start_lock(home, deadline):
        if (server := running_server(home)) is None:
            before_start()
            log_start = _log_size(home)
            process = _spawn(home, options)
        else:
            log_start, process = 0, None  # somebody else's that is just getting ready
        return _await_ready(home, process, deadline, log_start)


def stop_server(home: Path, *, timeout_s: float = 15.0) -> bool:
    """Ask the home's server to end and wait until it has. False if none ran. Its runs go on without it."""
    server = running_server(home)
    if server is None:
        return False
    try:
        os.kill(server.pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    deadline = time.monotonic() + timeout_s
    while process_start(server.pid) == server.pid_start:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the server (pid {server.pid}) has not ended within {timeout_s:g} s",
                hint=f"see {home / 'server.log'}; `kill -9 {server.pid}` loses nothing",
            )
        time.sleep(_POLL_S)
    return True


def _listens(url: str) -> bool:
    """The least that can be asked: this comes before every submission. A server is known once it answers, so all that
    is to be told is whether it has just ended."""
    where = urlsplit(url)
    connection = Connection(where.hostname or "", where.port or 80, timeout_s=2.0)
    try:
        connection.connect()
        return True
    except OSError:
        return False
    finally:
        connection.close()


def answers(url: str) -> bool:
    where = urlsplit(url)
    connection = Connection(where.hostname or "", where.port or 80, timeout_s=2.0)
    try:
        connection.request("GET", "/health", None, {})
        return connection.getresponse().status < 500
    except (OSError, BadAnswer):
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def _start_lock(home: Path, deadline: float) -> Iterator[None]:
    with open(home / "start.lock", "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ServerUnreachable(
                        f"another process has been starting the server of {home} for long"
                    ) from None
                time.sleep(_POLL_S)
        yield


def _spawn(home: Path, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    import subprocess

    command = [sys.executable, "-m", "windlass.server", "--home", str(home), *options]
    with open(home / "server.log", "ab") as log:
        # Its own session and "/" as folder: it outlives the terminal and holds no mount busy. -P is not used, since
        # the server must import what this interpreter imports.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/", close_fds=True
        )


def _await_ready(home: Path, process: subprocess.Popen[bytes] | None, deadline: float, log_start: int) -> ServerRecord:
    while time.monotonic() < deadline:
        server = read_server_record(home)
        if server is not None and process_start(server.pid) == server.pid_start and answers(server.url):
            if process is not None:
                process.returncode = 0  # it stays; Popen must not warn that we leave it behind
            return server
        if process is not None and process.poll() is not None:
            raise ServerUnreachable(
                f"the embedded server ended at once with exit code {process.returncode}{_log_tail(home, log_start)}",
                hint="`windlass up` in the foreground shows more; `windlass doctor` checks the installation",
            )
        time.sleep(_POLL_S)
    raise ServerUnreachable(
        f"the embedded server of {home} was not ready in time{_log_tail(home, log_start)}",
        hint="`windlass up` in the foreground shows more; `windlass doctor` checks the installation",
    )


def _log_size(home: Path) -> int:
    try:
        return (home / "server.log").stat().st_size
    except OSError:
        return 0


def _log_tail(home: Path, start: int, lines: int = 15) -> str:
    """Of what has come since it had `start` bytes: the log goes on over all servers of the home."""
    try:
        text = (home / "server.log").read_bytes()[start:][-8_192:].decode(errors="replace")
    except OSError:
        return ""
    tail = text.strip().splitlines()[-lines:]
    return "; the end of its log:\n  " + "\n  ".join(tail) if tail else ""
