"""Following ranks that were started again until they are beyond where their predecessors died, for the record."""

from __future__ import annotations

import os
from typing import Any

from . import layout
from .progress import Progress, read_progress
from .recovery import Failed, first_beyond, render_recovery

_LOOK_EVERY_S = 0.05  # what a step takes is told by the rank itself; this is how soon we see that it was the first
_LOOK_CLOSELY_S = 30.0
_LOOK_SELDOM_S = 1.0


class Comeback:
    def __init__(self, node_dir: str, failed: Failed, started_at: float) -> None:
        self._node_dir = node_dir
        self._failed = failed
        self._started_at = started_at
        self.look_at = started_at

    def look(self, now: float) -> dict[str, Any] | None:
        """The finished record, once there is one. Ranks that never told a step are back when they have started."""
        ranks = told_progress(self._node_dir)
        if self._failed.step < 0 or first_beyond(self._failed.step, ranks, now) is not None:
            return render_recovery(self._failed, self._started_at, ranks, now)
        is_early = now - self._started_at < _LOOK_CLOSELY_S
        self.look_at = now + (_LOOK_EVERY_S if is_early else _LOOK_SELDOM_S)
        return None

    def break_off(self, now: float) -> dict[str, Any]:
        """The record as far as it goes: they have failed again, or were stopped."""
        return render_recovery(self._failed, self._started_at, told_progress(self._node_dir), now)


def told_progress(node_dir: str) -> list[Progress]:
    """Nothing where the folder cannot be looked at just now, as a shared one."""
    try:
        paths = _progress_files(node_dir)
    except OSError:
        return []
    return [read_progress(path) for path in paths]


def newest_step(node_dir: str) -> int:
    """-1 where no rank has told a step."""
    return max((one.step for one in told_progress(node_dir)), default=-1)


def forget_progress(node_dir: str) -> None:
    """What the dead have told is not to be taken for their successors'."""
    for path in _progress_files(node_dir):
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue


def _progress_files(node_dir: str) -> list[str]:
    """Of all ranks: where a launcher of its own starts the workers, it numbers them."""
    return [os.path.join(node_dir, name) for name in os.listdir(node_dir) if layout.rank_of_progress(name) is not None]
