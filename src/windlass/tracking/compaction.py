"""What becomes of points after they have arrived: small tails of a run become larger ones, and those become chunks of
each metric. What to do is decided by pure functions; the store does it in `tracking.chunks`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from windlass.tracking.columns import Column

FULL = 4_096  # points of a chunk
MANY = 16  # tails of about the same size are one
ENOUGH = FULL // 2  # points of each metric: chunks are opened to be filled up, and not for a few
_MOST_POINTS = 1_000_000  # of one run in memory
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """A row of points without its data."""

    id: int
    points: int
    metrics: int
    size: int


class Deed(StrEnum):
    MERGE = "merge"  # into one tail
    CHUNK = "chunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    deed: Deed
    tail_ids: tuple[int, ...]


def decide_compaction(tails: Sequence[Tail], *, settled: int) -> Compaction | None:
    """What to do with the tails of one run, given in order of arrival. `settled`: those up to this id have lain for a
    while; a run that has no newer ones gets chunks of what there is."""
    if not tails:
        return None
    points, size = sum(tail.points for tail in tails), sum(tail.size for tail in tails)
    is_enough = points >= ENOUGH * max(tail.metrics for tail in tails)
    if is_enough or points >= _MOST_POINTS or size >= _MOST_BYTES or tails[-1].id <= settled:
        return Compaction(deed=Deed.CHUNK, tail_ids=_first(tails))
    alike: dict[int, list[int]] = {}
    for tail in tails:
        alike.setdefault(tail.points.bit_length() // 4, []).append(tail.id)
    for tier in sorted(alike):
        if len(alike[tier]) >= MANY:
            return Compaction(deed=Deed.MERGE, tail_ids=tuple(alike[tier]))
    return None


def _first(tails: Sequence[Tail]) -> tuple[int, ...]:
    """As many of the oldest as fit into memory, one at least."""
    taken: list[int] = []
    points = size = 0
    for tail in tails:
        points, size = points + tail.points, size + tail.size
        if taken and (points > 2 * _MOST_POINTS or size > 2 * _MOST_BYTES):
            break
        taken.append(tail.id)
    return tuple(taken)


Place = tuple[int, float]  # of a point in the order of its metric: step and time


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A chunk without its points."""

    seq: int
    points: int
    first: Place
    last: Place
    thinned: bool = False  # there are roll-ups alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """New points and the chunk they go to: it is written anew with them, or a new one for them (None)."""

    chunk: int | None
    points: Column


def decide_fillings(heads: Sequence[Head], new: Column) -> list[Filling]:
    """Where new points of a metric go, both in order. Every chunk keeps a stretch of its own as far as can be, so that
    what comes late costs one chunk and no more."""
    open_heads = sorted((head for head in heads if not head.thinned), key=lambda head: head.first)
    firsts = [head.first for head in open_heads]
    places = list(zip(new.steps, new.ats, strict=True))
    fillings: list[Filling] = []
    start = 0
    while start < len(places):
        number = max(0, bisect_right(firsts, places[start]) - 1)
        end = len(places)
        if number + 1 < len(firsts):
            end = _count_before(places, firsts[number + 1], start)
        head = open_heads[number] if open_heads else None
        is_done = head is None or (head.points >= FULL and head.last < places[start])
        fillings.append(Filling(chunk=None if is_done or head is None else head.seq, points=new.cut(start, end)))
        start = end
    return fillings


def _count_before(places: Sequence[Place], border: Place, start: int) -> int:
    low, high = start, len(places)
    while low < high:
        middle = (low + high) // 2
        if places[middle] < border:
            low = middle + 1
        else:
            high = middle
    return max(low, start + 1)


def pieces(column: Column) -> list[Column]:
    return [column.cut(start, start + FULL) for start in range(0, len(column.steps), FULL)]
