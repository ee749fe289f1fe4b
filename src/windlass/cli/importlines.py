"""How far `import` is, told where no bar can be drawn: a line now and then, for logs and those who wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from windlass.core.quantities import format_size

_EVERY_S = 10.0


class Lines:
    def __init__(self, tell: Callable[[str], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._found = self._ended = self._points = self._bytes = 0
        self._told_at = monotonic()

    def found(self, runs: int) -> None:
        self._count(found=runs)

    def ended(self, run: str) -> None:
        del run
        self._count(ended=1)

    def sent(self, size: int) -> None:
        self._count(size=size)

    def logged(self, points: int) -> None:
        self._count(points=points)

    def _count(self, *, found: int = 0, ended: int = 0, size: int = 0, points: int = 0) -> None:
        with self._lock:
            self._found += found
            self._ended += ended
            self._bytes += size
            self._points += points
            if self._monotonic() - self._told_at < _EVERY_S:
                return
            self._told_at = self._monotonic()
            line = f"copied {self._ended:,} of {self._found:,} runs so far"
            self._tell(f"{line}, {self._points:,} points, {format_size(self._bytes)} of files")
