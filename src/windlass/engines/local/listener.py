"""Hearing at once that something happened on a node, instead of at the next look. Only a hint: it may be lost."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path


class Listener:
    """A datagram socket and a thread that calls `notify` when anything comes in."""

    def __init__(self, path: Path, notify: Callable[[], None]) -> None:
        self.path = path
        self._notify = notify
        path.unlink(missing_ok=True)  # left by a server that died
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))
        self._inode = path.stat().st_ino
        self._end, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="local-engine-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.close()
        self._thread.join()
        self._socket.close()
        self._ended.close()
        if self.path.exists() and self.path.stat().st_ino == self._inode:  # not another server's by now
            self.path.unlink()

    def _listen(self) -> None:
        while True:
            ready, _, _ = select.select([self._socket, self._ended], [], [])
            if self._ended in ready:
                return
            self._read_all()
            self._notify()

    def _read_all(self) -> None:
        """Many at once are one reason to look."""
        while True:
            try:
                self._socket.recv(256)
            except BlockingIOError:
                return
