"""Processes that begin with their modules loaded: forked from one that has loaded them, since that takes many times
longer than most of what tests do with them.

Each is otherwise as `python -c` would have it: environment, folder, arguments, command line and `__main__` are its own.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_NUMBER = struct.Struct("<i")
_LONGEST_COMMAND = 4096  # as much room as a child has for its own command line


class Child:
    """One of them, with what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass  # it has just ended

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(_read_number(self._status))
            os.close(self._status)
        return self.returncode


class Nursery:
    """Loads the modules when the first child is asked for, and ends with this process."""

    def __init__(self, *modules: str, folder: Path | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._modules = modules
        self._folder = folder
        self._environ = environ or {}
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def start(
        self,
        script: str,
        *arguments: str,
        environ: Mapping[str, str],
        output: int,
        inputs: int | None = None,
        folder: Path | None = None,
    ) -> Child:
        """Run a script as `python -c SCRIPT ARGUMENTS` would. Both of its output streams go to one descriptor; what it
        is given as standard input may be a socket."""
        order = {
            "script": script,
            "arguments": arguments,
            "environ": dict(environ),
            "folder": str(folder or Path.cwd()),
        }
        status, told = os.pipe()
        try:
            self._send(json.dumps(order).encode(), [output, told, *([] if inputs is None else [inputs])])
        finally:
            os.close(told)
        return Child(_read_number(status), status)

    def _send(self, data: bytes, descriptors: Sequence[int]) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        with self._lock:
            if self._socket is None:
                self._socket = self._open()
            self._socket.sendmsg([_NUMBER.pack(len(data))], [rights])
            self._socket.sendall(data)

    def _open(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), ",".join(self._modules), "." * _LONGEST_COMMAND],
                env={**clean, **self._environ},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        return ours


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    head, descriptors, _, _ = socket.recv_fds(connection, _NUMBER.size, 3)
    if not head:
        return None  # whoever asked is gone
    (size,) = _NUMBER.unpack(head)
    return json.loads(connection.recv(size, socket.MSG_WAITALL)), descriptors


def _read_number(descriptor: int) -> int:
    data = os.read(descriptor, _NUMBER.size)
    if not data:
        raise RuntimeError("the process that starts others has ended; see above why")
    return int(_NUMBER.unpack(data)[0])


def _await_birth(connection: socket.socket) -> dict[str, Any] | None:
    """Returns in every child, with what it is to do, and in the parent when nobody asks any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    while (order := _receive(connection)) is not None:
        what, (output, status, *inputs) = order
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            pid = os.fork()
            if pid == 0:
                os.close(status)
                os.dup2(output, 1)
                os.dup2(output, 2)
                for descriptor in inputs:
                    os.dup2(descriptor, 0)
                _close(output, *inputs)
                return what
            _close(output, *inputs)
            os.write(status, _NUMBER.pack(pid))
            os.write(status, _NUMBER.pack(os.waitpid(pid, 0)[1]))
            os._exit(0)
        _close(output, status, *inputs)
    return None


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _become(order: dict[str, Any]) -> tuple[types.CodeType, dict[str, Any]]:
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["folder"])
    sys.argv[:] = ["-c", *order["arguments"]]
    sys.path[0] = ""
    _show_command([sys.executable, *sys.argv])
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    return compile(order["script"], "<string>", "exec"), main.__dict__


def _show_command(words: list[str]) -> None:
    """Others know a process by what /proc says of its command line: the room that the parent's was given."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end
    shown = b"\0".join(map(os.fsencode, words))[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, len(shown))


if __name__ == "__main__":
    sys.path[0] = os.getcwd()
    for _name in sys.argv[2].split(","):
        importlib.import_module(_name)
    gc.freeze()  # what is never collected need not be copied
    _order = _await_birth(socket.socket(fileno=int(sys.argv[1])))
    if _order is None:
        os._exit(0)  # tidying up takes a second
    exec(*_become(_order))  # at the very end, so that it ends as any program does
