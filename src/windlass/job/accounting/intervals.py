"""Pure arithmetic on stretches of time: how much of a step was communication, and how much of that was hidden."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Interval: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    communication: float  # of the step's time, hidden or not
    overlapped: float  # of the communication: what went on while something was computed

    @property
    def exposed(self) -> float:
        """What communication adds to the step, as a share of it."""
        return self.communication * (1 - self.overlapped)


def shares(*, communication: Iterable[Interval], compute: Iterable[Interval], span_s: float) -> Shares:
    """Both in seconds of one clock; intervals may overlap each other and come in any order."""
    talking, working = merged(communication), merged(compute)
    talked_s = length(talking)
    if talked_s <= 0 or span_s <= 0:
        return Shares(communication=0.0, overlapped=0.0)
    return Shares(communication=min(1.0, talked_s / span_s), overlapped=overlap(talking, working) / talked_s)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same stretches, in order and with nothing counted twice."""
    result: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def length(intervals: Sequence[Interval]) -> float:
    """Of merged intervals."""
    return sum(end - begin for begin, end in intervals)


def overlap(left: Sequence[Interval], right: Sequence[Interval]) -> float:
    """How long two lists of merged intervals have in common."""
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        total += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return total
