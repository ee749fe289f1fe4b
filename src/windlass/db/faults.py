"""Dying on purpose: `WINDLASS_FAULT_COMMIT=N:before` (or `:after`) kills this process with SIGKILL right before (or
after) its N-th committed write. The crash tests sweep N; nothing else sets it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping

VARIABLE = "WINDLASS_FAULT_COMMIT"


class CommitFault:
    def __init__(self, number: int, when: str) -> None:
        if when not in ("before", "after"):
            raise ValueError(f"{VARIABLE}: unknown moment '{when}'; known: before, after")
        self._number = number
        self._when = when
        self._seen = 0
        self._lock = threading.Lock()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> CommitFault | None:
        text = environ.get(VARIABLE)
        if not text:
            return None
        number, _, when = text.partition(":")
        return cls(int(number), when or "before")

    def before(self) -> None:
        with self._lock:
            self._seen += 1
        self._die_if("before")

    def after(self) -> None:
        self._die_if("after")

    def _die_if(self, moment: str) -> None:
        if self._when == moment and self._seen >= self._number:
            os.kill(os.getpid(), signal.SIGKILL)
