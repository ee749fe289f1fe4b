"""A rank's saver process as the rank sees it: started once, given orders, listened to without waiting."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import windlass
from windlass.job.checkpoint.arena import Arena
from windlass.job.checkpoint.saver import Order

_START = (
    "import sys; sys.path.insert(0, sys.argv[2]); "
    "from windlass.job.checkpoint.saver import main; main(int(sys.argv[1]), sys.argv[3], int(sys.argv[4]))"
)


class SaverGone(RuntimeError):
    """The saver process has ended by itself, so nothing can be saved."""


class Companion:
    def __init__(self, memory: Path | None = None, rank: int = 0) -> None:
        """`memory`: the folder of the copies of that rank."""
        ours, theirs = socket.socketpair()
        root = str(Path(windlass.__file__).resolve().parents[1])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(theirs.fileno()), root, str(memory or ""), str(rank)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a signal to the rank's group is not for it
        )
        theirs.close()
        self._socket = ours
        self._answers = b""
        self.is_busy = False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def give_arena(self, arena: Arena, metadata: bytes, number: int = 0) -> None:
        message = {"what": "arena", "number": number, "metadata_bytes": len(metadata)}
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode() + b"\n"], [arena.fd])
            self._socket.sendall(metadata)
        except OSError as error:
            raise self._gone() from error

    def give_order(self, order: Order) -> None:
        assert not self.is_busy
        try:
            self._socket.sendall(json.dumps({"what": "save", "order": asdict(order)}).encode() + b"\n")
        except OSError as error:
            raise self._gone() from error
        self.is_busy = True

    def answer(self, wait_s: float | None = 0.0) -> dict[str, Any] | None:
        """How the save ended, once it has; None: not within `wait_s` (None: however long)."""
        while self.is_busy:
            line, found, rest = self._answers.partition(b"\n")
            if found:
                self._answers = rest
                self.is_busy = False
                answer: dict[str, Any] = json.loads(line)
                return answer
            if not select.select([self._socket], [], [], wait_s)[0]:
                return None
            data = self._socket.recv(1 << 16)
            if not data:
                self.is_busy = False
                raise self._gone()
            self._answers += data
        return None

    def close(self, *, wait_s: float | None) -> None:
        """Tell it to end after what it is doing; wait for that, or leave it to finish alone."""
        with contextlib.suppress(OSError):  # it has ended
            self._socket.send(b'{"what": "end"}\n', socket.MSG_DONTWAIT)
        self._socket.close()
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            _left_alone.append(self._process)

    def _gone(self) -> SaverGone:
        code = self._process.poll()
        how = "has closed its socket" if code is None else f"has ended with {code}"
        return SaverGone(f"the saver process {self._process.pid} of rank {os.environ.get('RANK', '0')} {how}")


_left_alone: list[subprocess.Popen[bytes]] = []  # or Python would warn of children that nobody waits for
