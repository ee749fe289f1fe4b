"""Time comes in through a Clock, so that tests and simulations can own it. Seconds since the epoch, as floats."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float: ...


class SystemClock:
    def now(self) -> float:
        return time.time()


def is_due(at: float, now: float, *, every_s: float) -> bool:
    """Whether it is `at` or later. What comes round every `every_s` is never due later than that from now: if it seems
    so, the clock has been set back."""
    return not now < at <= now + every_s
