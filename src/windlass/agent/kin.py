"""The processes below a supervisor: ranks, and whatever they have started. Orphans are among them: it adopts them."""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, Iterable

from . import kernel, savers

_KILL_PATIENCE_S = 5.0


class Kin:
    def __init__(self, reap: Callable[[], None]) -> None:
        self._reap = reap
        self._spared = savers.Spared()
        self.left_alone: int | None = None  # the pid of the probe, which may outlive the ranks

    def all(self) -> list[int]:
        """Every descendant that is not the probe's business."""
        spared = set()
        if self.left_alone is not None:
            spared = {self.left_alone, *kernel.descendants(self.left_alone)}
        return [pid for pid in kernel.descendants(os.getpid()) if pid not in spared]

    def has_savers(self) -> bool:
        return bool(savers.only_savers(self.all()))

    def kill(self, *, sparing_savers: bool = False) -> None:
        """All of them, also those that are started meanwhile; savers may have a while to finish what they write."""
        deadline = time.monotonic() + _KILL_PATIENCE_S
        while True:
            found = self.all()
            spared = savers.only_savers(found) if sparing_savers else []
            self._spared.add(spared, time.monotonic())
            doomed = set(found) - set(spared)
            if not doomed or time.monotonic() > deadline:
                return
            _kill(doomed)
            self._reap()
            time.sleep(0.001)

    def kill_overdue(self, now: float) -> None:
        _kill(self._spared.take_overdue(now))

    def next_at(self) -> float | None:
        return self._spared.next_end()


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue  # gone already, or a set-uid program that is not ours to kill
