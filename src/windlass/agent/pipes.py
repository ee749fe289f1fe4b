"""What the ranks of a node write, read as it comes, and the signals that their supervisor gets.

What is open here must not be when ranks are forked: a warm rank would inherit the selector, and when the object is
collected there, it would close what has its number by then, such as a file of the script's.
"""

from __future__ import annotations

import os
import select
import selectors
import time
from typing import Callable

from .ranklog import RankLog, Stream

_READ_BYTES = 256 * 1024
# A rank that prints at every step would wake us at every step, and waking somebody costs it tens of microseconds.
_REST_S = 0.04
_LITTLE_BYTES = 16 * 1024
_DRAIN_PATIENCE_S = 1.0


class Pipes:
    def __init__(self, wakeup_fd: int, on_signals: Callable[[], None]) -> None:
        self._wakeup_fd = wakeup_fd
        self._on_signals = on_signals
        self._readers: dict[int, Callable[[], bool]] = {}
        self._selector: selectors.BaseSelector | None = None
        self._signals = select.poll()
        self._signals.register(wakeup_fd, select.POLLIN)
        self._read_bytes = 0  # since the last rest

    def add(self, fd: int, stream: Stream, log: RankLog) -> None:
        """To be read from the next `open` on."""
        self._readers[fd] = self._reader(fd, stream, log)

    def open(self) -> selectors.BaseSelector:
        """After the last fork."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup_fd, selectors.EVENT_READ, self._on_signals)
        for fd, reader in self._readers.items():
            self._selector.register(fd, selectors.EVENT_READ, reader)
        return self._selector

    def heed(self, wait_s: Callable[[], float]) -> None:
        """Whatever has come, within that time."""
        assert self._selector is not None
        if 0 < self._read_bytes < _LITTLE_BYTES:
            # Output gathers meanwhile; a signal ends the rest. After more than a little there is none: a rank must
            # not wait for room in its pipe.
            self._signals.poll(1000 * min(_REST_S, wait_s()))
        self._read_bytes = 0
        for key, _ in self._selector.select(wait_s()):
            # An event handled before, of the same batch, may have closed it.
            if key.fd in self._selector.get_map():
                key.data()

    def read_all(self) -> None:
        """Whatever the ranks have written so far."""
        for reader in list(self._readers.values()):
            while reader():
                pass

    def close(self, *, at_once: bool) -> None:
        """Everyone who could write is dead, so every pipe has an end, but for those that a spared saver shares; the
        limit is for the unforeseen."""
        assert self._selector is not None
        deadline = time.monotonic() + (0.0 if at_once else _DRAIN_PATIENCE_S)
        self.read_all()
        while self._readers and time.monotonic() < deadline:
            for key, _ in self._selector.select(0.1):
                if key.fd in self._readers:
                    key.data()
        for fd in self._readers:
            os.close(fd)
        self._readers.clear()
        self._selector.close()
        self._selector = None

    def _reader(self, fd: int, stream: Stream, log: RankLog) -> Callable[[], bool]:
        def read() -> bool:
            """Whether there may be more."""
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                return False
            if data:
                self._read_bytes += len(data)
                log.feed(stream, data, time.time())
                return True
            if self._selector is not None:
                self._selector.unregister(fd)
            del self._readers[fd]
            os.close(fd)
            log.finish(stream, time.time())
            return False

        return read
