"""The warm launcher: a process that has imported the slow modules of an environment and forks supervisors on request.

It answers nobody and keeps nothing: requests wait in the socket's backlog while it imports, and what it has forked
goes on without it.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any, Sequence

from . import kernel
from .files import write_json
from .probe import folder_times
from .ranks import Step, WarmState, fork
from .script import run_target  # noqa: F401  # loaded here once, so that no rank has to
from .supervisor import supervise

_LOOK_AROUND_S = 2.0  # how soon a launcher whose socket file is gone notices
_REQUEST_TIMEOUT_S = 5.0
OLDEST_PYTHON = (3, 9)


class Launcher:
    def __init__(
        self, *, fd: int, path: str, interpreter: str, preimport: Sequence[str], later: Sequence[str], idle_s: float
    ) -> None:
        self._listener = socket.socket(fileno=fd)
        self._path = path
        self._file_id = _file_id(path)
        self._interpreter = interpreter
        self._preimport = tuple(preimport)
        self._later = list(later)
        self._spared: list[str] = []
        self._idle_s = idle_s
        self._mark_address = kernel.find_mark_address()
        self._warm: WarmState | None = None
        self._times: dict[str, int] = {}

    def serve(self) -> Step | None:
        """Until idle, stale or unwanted. Returns a step in a forked process, None in the launcher itself."""
        problem = self._unfit()
        if problem:
            self._publish("unfit", problem=problem)
            return None
        self._publish("importing")
        self._import()
        self._publish("ready")
        last_request_at = time.monotonic()
        while self._is_wanted() and time.monotonic() - last_request_at < self._idle_s:
            if not select.select([self._listener], [], [], _LOOK_AROUND_S)[0]:
                if self._later:
                    self._load([self._later.pop(0)])  # one at a time: somebody may come
                continue
            last_request_at = time.monotonic()
            step = self._accept()
            if step is not None:
                return step
            if self._is_stale():
                break
        return self._retire()

    def _unfit(self) -> str:
        if self._interpreter == "":
            return ""
        if sys.implementation.name != "cpython":
            return "%s is not CPython" % sys.implementation.name
        if sys.version_info < OLDEST_PYTHON:
            return "Python %d.%d is older than %d.%d" % (*sys.version_info[:2], *OLDEST_PYTHON)
        return ""

    def _import(self) -> None:
        """Whatever of the wanted modules there is. One that fails to import is the script's affair, later."""
        self._times = folder_times(sys.path)
        atexit.register(_spare, self._spared)
        self._load(self._preimport)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel

    def _load(self, names: Sequence[str]) -> None:
        before = set(sys.modules)
        for name in names:
            try:
                if importlib.util.find_spec(name) is not None:
                    importlib.import_module(name)
            except Exception:
                traceback.print_exc()
        for name in names:
            origin = getattr(sys.modules.get(name), "__file__", None)
            if origin:
                self._times.update(folder_times([os.path.dirname(origin)]))
        self._spared.extend(set(sys.modules) - before)
        gc.collect()
        gc.freeze()  # so that collections in the forks do not copy what is shared
        if self._interpreter:
            fds = {int(name) for name in os.listdir("/proc/self/fd")} - {self._listener.fileno()}
            kept = frozenset(fd for fd in fds if fd > 2 and os.path.exists("/proc/self/fd/%d" % fd))
            self._warm = WarmState(self._interpreter, self._mark_address, kept)

    def _accept(self) -> Step | None:
        connection, _ = self._listener.accept()
        with connection:
            request = _receive(connection)
        if request is None:
            return None  # somebody only looked whether we are here
        warm = None if self._is_stale() else self._warm
        sys.stdout.flush()
        sys.stderr.flush()
        if fork():
            return None
        self._listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return functools.partial(supervise, request["node_dir"], request["secrets"], warm)

    def _is_stale(self) -> bool:
        """Packages were installed or removed since the import: what is loaded may not be what is installed."""
        return folder_times(list(self._times)) != self._times

    def _is_wanted(self) -> bool:
        return _file_id(self._path) == self._file_id

    def _retire(self) -> Step | None:
        """Out of reach first, so that no request comes in after the last look at the backlog."""
        if self._is_wanted():
            os.unlink(self._path)
            os.unlink(_state_path(self._path))
        self._listener.setblocking(False)
        while True:
            try:
                step = self._accept()
            except BlockingIOError:
                return None
            if step is not None:
                return step

    def _publish(self, state: str, **more: Any) -> None:
        own = kernel.stat(os.getpid())
        assert own is not None
        content = {
            "state": state,
            "pid": own.pid,
            "pid_start": own.start,
            "boot_id": kernel.boot_id(),
            "interpreter": self._interpreter,
        }
        if self._is_wanted():
            write_json(_state_path(self._path), dict(content, **more))


def _spare(names: Sequence[str]) -> None:
    """At the end of a rank, let go of the shared modules instead of taking them apart: that would copy all of their
    memory first, and takes longer than many a script. Registered before they are imported, so it is the last of the
    exit functions to run; the script's own modules and objects end as ever."""
    kept = [sys.modules.pop(name) for name in names if name in sys.modules]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    connection.settimeout(_REQUEST_TIMEOUT_S)
    parts = []
    try:
        while True:
            part = connection.recv(65536)
            if not part:
                break
            parts.append(part)
    except OSError:
        return None  # the other side died in the middle: it will ask again
    data = b"".join(parts)
    if not data.endswith(b"\n"):
        return None
    request = json.loads(data)
    return request if isinstance(request, dict) else None


def _state_path(socket_path: str) -> str:
    return socket_path + ".json"


def _file_id(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
