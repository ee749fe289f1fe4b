"""Processes that begin with PyTorch loaded: forked from one that has loaded it, since loading it takes a hundred times
longer than most of what tests do with it.

Each is otherwise as `python -c` would have it: environment, folder, arguments and `__main__` are its own.
"""

from __future__ import annotations

import array
import atexit
import functools
import gc
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
_LOADED = (
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.profiler",
)
_NUMBER = struct.Struct("<i")


class Child:
    """One of them, with what tests use of `subprocess.Popen`; its output is one stream of text."""

    def __init__(self, pid: int, status: int, stdout: IO[str]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass  # it has just ended

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(_read_number(self._status))
            os.close(self._status)
        return self.returncode

    def communicate(self, timeout: float = 150.0) -> tuple[str, None]:
        """All of its output. One that takes longer is killed, which its code tells."""
        timer = threading.Timer(timeout, self.kill)
        timer.start()
        try:
            said = self.stdout.read()
            self.wait()
        finally:
            timer.cancel()
            timer.join()
        self.stdout.close()
        return said, None


def start_child(script: str, *arguments: str, environ: Mapping[str, str], folder: Path | None = None) -> Child:
    """OMP_NUM_THREADS is 1 in all of them: it counts when PyTorch is loaded."""
    order = {"script": script, "arguments": arguments, "environ": dict(environ), "folder": str(folder or Path.cwd())}
    output, theirs = os.pipe()
    status, told = os.pipe()
    try:
        _send(_nursery(), json.dumps(order).encode(), [theirs, told])
    finally:
        os.close(theirs)
        os.close(told)
    return Child(_read_number(status), status, open(output, errors="replace"))


@functools.cache
def _nursery() -> socket.socket:
    ours, theirs = socket.socketpair()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env={**environ, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def _send(connection: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    connection.sendmsg([_NUMBER.pack(len(data))], [rights])
    connection.sendall(data)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    head, descriptors, _, _ = socket.recv_fds(connection, _NUMBER.size, 2)
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
        what, (output, status) = order
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            pid = os.fork()
            if pid == 0:
                os.close(status)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.close(output)
                return what
            os.close(output)
            os.write(status, _NUMBER.pack(pid))
            os.write(status, _NUMBER.pack(os.waitpid(pid, 0)[1]))
            os._exit(0)
        os.close(output)
        os.close(status)
    return None


def _become(order: dict[str, Any]) -> tuple[types.CodeType, dict[str, Any]]:
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["folder"])
    sys.argv[:] = ["-c", *order["arguments"]]
    sys.path[0] = ""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    return compile(order["script"], "<string>", "exec"), main.__dict__


if __name__ == "__main__":
    for _name in _LOADED:
        importlib.import_module(_name)
    gc.freeze()  # what is never collected need not be copied
    _order = _await_birth(socket.socket(fileno=int(sys.argv[1])))
    if _order is None:
        os._exit(0)  # tidying up takes a second
    exec(*_become(_order))  # at the very end, so that it ends as any program does
