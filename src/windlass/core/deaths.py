"""Dying on purpose at the N-th of something that changes the world: for tests that sweep N, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

Result = TypeVar("Result")


class Deaths:
    """`N:before` or `N:after` in `variable`: SIGKILL right before, or right after, the N-th act."""

    def __init__(self, environ: Mapping[str, str], variable: str) -> None:
        text = environ.get(variable, "")
        number, _, when = text.partition(":")
        if text and when not in ("before", "after"):
            raise ValueError(f"{variable}: unknown moment '{when}'; known: before, after")
        self._number = int(number) if text else None
        self._after = when == "after"
        self._count = 0
        self._lock = threading.Lock()

    def at(self, act: Callable[[], Result]) -> Result:
        if self._number is None:
            return act()
        with self._lock:  # one at a time, so that N means the same every time
            self._count += 1
            if self._count >= self._number and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = act()
            if self._count >= self._number:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
