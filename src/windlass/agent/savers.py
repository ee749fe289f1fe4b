"""Processes of `windlass.job.checkpoint` beside the ranks, which outlive them to finish what they write."""

from __future__ import annotations

from typing import Iterable

# How long they may take once their rank is dead. Those that wait for a part which a dead rank never wrote never end.
PATIENCE_S = 60.0
_NAME = b"windlass.job.checkpoint."


def is_saver(pid: int) -> bool:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return _NAME in file.read(4096)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def only_savers(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if is_saver(pid)]


class Spared:
    """Savers of ranks that are dead, and until when each may go on."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def add(self, pids: Iterable[int], now: float) -> None:
        for pid in pids:
            self._until.setdefault(pid, now + PATIENCE_S)

    def next_end(self) -> float | None:
        return min(self._until.values(), default=None)

    def take_overdue(self, now: float) -> list[int]:
        """Those whose time is over, once. Whoever has ended meanwhile may have left its number to another."""
        over = [pid for pid, until in self._until.items() if now >= until]
        for pid in over:
            del self._until[pid]
        return only_savers(over)
