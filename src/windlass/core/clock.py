"""Time comes in through a Clock, so that tests and simulations can own it. Seconds since the epoch, as floats."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float: ...


class SystemClock:
    def now(self) -> float:
        return time.time()
