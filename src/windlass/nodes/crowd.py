"""How often nodes should report: the more of them there are, the more rarely, so that all together stay bearable."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Connection

from windlass.nodes import store

_COUNT_EVERY_S = 10.0
_BEATS_PER_S = 100  # of all nodes together
_BEAT_S = (0.5, 10.0)
_WATCHED_PAUSE_S = 0.1
_MOST_PAUSE_S = 2.0


class Pace(NamedTuple):
    pause_s: float
    beat_s: float


def decide_pace(nodes: int, *, watched: bool) -> Pace:
    least_s, most_s = _BEAT_S
    beat_s = min(most_s, max(least_s, nodes / _BEATS_PER_S))
    return Pace(pause_s=_WATCHED_PAUSE_S if watched else min(beat_s, _MOST_PAUSE_S), beat_s=beat_s)


class Crowd:
    """Knows about how many nodes there are. Threads may count at the same time; they count the same."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._nodes = 0
        self._counted_at: float | None = None

    def pace(self, tx: Connection, *, watched: bool) -> Pace:
        now = self._monotonic()
        if self._counted_at is None or now - self._counted_at > _COUNT_EVERY_S:
            self._nodes = store.count_open(tx)
            self._counted_at = now
        return decide_pace(self._nodes, watched=watched)
