"""Clocks for tests: one that moves only when it is told to, and one that runs faster than the wall."""

from __future__ import annotations

import time
from dataclasses import dataclass


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

    def set_back(self, seconds: float) -> None:
        """As people and time servers do. Waiting is not touched by it."""
        self._now -= seconds
        self._started -= seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    now: float
    since: float  # by the wall
    speed: float


class ScaledClock:
    """`speed` seconds pass with every second of the wall; none with 0. Safe from any thread."""

    def __init__(self, now: float = 1_700_000_000.0, *, speed: float = 1.0) -> None:
        self._pace = _Pace(now=now, since=time.monotonic(), speed=speed)

    def now(self) -> float:
        pace = self._pace  # another thread may set a new one
        return pace.now + pace.speed * (time.monotonic() - pace.since)

    def run_at(self, speed: float) -> None:
        """From now on."""
        if speed < 0:
            raise ValueError(f"a speed of {speed}: time does not go back")
        wall = time.monotonic()
        pace = self._pace
        self._pace = _Pace(now=pace.now + pace.speed * (wall - pace.since), since=wall, speed=speed)

    def sleep_until(self, moment: float) -> None:
        while (left := moment - self.now()) > 0:
            pace = self._pace
            time.sleep(min(0.1, left / pace.speed if pace.speed else 0.1))
