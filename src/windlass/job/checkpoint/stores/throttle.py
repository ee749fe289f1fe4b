"""So many bytes a second and no more, over all threads of a process: `Throttle`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Throttle:
    """Time is reserved before anything is sent, so that the rate holds over any longer while. `lift` ends it, also for
    those who are waiting: training is over, and somebody waits for us."""

    def __init__(self, bytes_per_s: float | None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = bytes_per_s
        self._monotonic = monotonic
        self._free_at = 0.0
        self._lock = threading.Lock()
        self._lifted = threading.Event()

    def reserve(self, size_bytes: int) -> float:
        """How long to wait before so many bytes may be sent."""
        if self._bytes_per_s is None or self._lifted.is_set():
            return 0.0
        with self._lock:
            now = self._monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + size_bytes / self._bytes_per_s
            return begin - now

    def wait(self, size_bytes: int) -> None:
        if (pause_s := self.reserve(size_bytes)) > 0:
            self._lifted.wait(pause_s)

    def lift(self) -> None:
        self._lifted.set()
