"""A clock that moves only when it is told to."""

from __future__ import annotations


class FakeClock:
    """Both of the times the code asks for: `now()` since the epoch and `monotonic()` for waiting."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._started = now

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now - self._started

    def advance(self, seconds: float) -> float:
        if seconds < 0:
            raise ValueError(f"{seconds} s: time does not go back")
        self._now += seconds
        return self._now
