"""What charts need of points: how many, their least, greatest and mean, where these are, and where a group of points
begins and ends. Pure.

Roll-ups of roll-ups are exact: a chart of any zoom is made of the coarsest ones that are finer than what it draws.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from windlass.tracking.columns import (
    Column,
    pack_ints,
    pack_parts,
    pack_times,
    pack_values,
    unpack_ints,
    unpack_parts,
    unpack_times,
    unpack_values,
)

GROUP = 64  # points in a roll-up of the finer kind
COARSE = 1_024


class Rollups(NamedTuple):
    """An entry for each group of points, in order. Without any number in it, a group's least is inf and its greatest
    -inf. Fields of one kind follow each other, see `_KINDS`."""

    points: array[int]
    numbers: array[int]  # those that are not NaN
    first_steps: array[int]
    last_steps: array[int]
    min_steps: array[int]
    max_steps: array[int]
    first_ats: array[float]
    last_ats: array[float]
    min_ats: array[float]
    max_ats: array[float]
    sums: array[float]
    mins: array[float]
    maxs: array[float]

    @classmethod
    def empty(cls) -> Rollups:
        return cls._make(array(code) for code in _KINDS)

    def extend(self, other: Rollups) -> None:
        parts: Iterable[tuple[Any, Any]] = zip(self, other, strict=True)
        for mine, more in parts:
            mine.extend(more)

    def cut(self, start: int, end: int) -> Rollups:
        return Rollups._make(part[start:end] for part in _parts(self))

    def picked(self, rows: Sequence[int]) -> Rollups:
        return Rollups._make(array(part.typecode, [part[row] for row in rows]) for part in _parts(self))


_KINDS = "qqqqqqddddddd"
_INTS, _TIMES = 6, 10  # fields before these are whole numbers, and times


def of_points(column: Column) -> Rollups:
    """Every point as a group of its own."""
    steps, ats, values = column
    ones = array("q", [1]) * len(steps)
    if not math.isnan(sum(values)):
        return Rollups._make([ones, ones, *4 * [steps], *4 * [ats], values, values, values])
    numbers = array("q", [int(value == value) for value in values])
    sums, mins, maxs = (_without_nan(values, instead) for instead in (0.0, math.inf, -math.inf))
    return Rollups._make([ones, numbers, *4 * [steps], *4 * [ats], sums, mins, maxs])


def grouped(fine: Rollups, size: int) -> Rollups:
    """Of `size` entries each; the last of what is left."""
    return _joined(fine, [*range(0, len(fine.points), size), len(fine.points)])


def bucketed(fine: Rollups, most: int) -> Rollups:
    """At most as many, of about as many points each."""
    if len(fine.points) <= most:
        return fine
    before = list(accumulate(fine.points, initial=0))
    borders = {bisect_left(before, number * before[-1] / most) for number in range(most + 1)}
    return _joined(fine, sorted(borders))


def _joined(fine: Rollups, borders: Sequence[int]) -> Rollups:
    rows: list[tuple[Any, ...]] = []
    for start, end in pairwise(borders):
        mins, maxs = fine.mins[start:end], fine.maxs[start:end]
        least, most = min(mins), max(maxs)
        lowest, highest = start + mins.index(least), start + maxs.index(most)
        if least == math.inf or most == -math.inf:  # of an infinity, or of a group without a number
            with_numbers = [row for row in range(start, end) if fine.numbers[row]] or [start]
            lowest = next((row for row in with_numbers if fine.mins[row] == least), start)
            highest = next((row for row in with_numbers if fine.maxs[row] == most), start)
        rows.append(
            (
                sum(fine.points[start:end]),
                sum(fine.numbers[start:end]),
                fine.first_steps[start],
                fine.last_steps[end - 1],
                fine.min_steps[lowest],
                fine.max_steps[highest],
                fine.first_ats[start],
                fine.last_ats[end - 1],
                fine.min_ats[lowest],
                fine.max_ats[highest],
                math.fsum(fine.sums[start:end]) if _is_finite(fine.sums[start:end]) else sum(fine.sums[start:end]),
                least,
                most,
            )
        )
    columns: Any = zip(*rows, strict=True) if rows else ((),) * len(_KINDS)
    return Rollups._make(array(code, column) for code, column in zip(_KINDS, columns, strict=True))


def pack_rollups(rollups: Rollups) -> bytes:
    fields = _parts(rollups)
    parts = [pack_ints(part) for part in fields[:_INTS]]
    parts += [pack_times(part) for part in fields[_INTS:_TIMES]]
    parts += [pack_values(part) for part in fields[_TIMES:]]
    return pack_parts(parts)


def unpack_rollups(data: bytes) -> Rollups:
    parts = unpack_parts(data)
    found: list[Any] = [unpack_ints(part) for part in parts[:_INTS]]
    found += [unpack_times(part) for part in parts[_INTS:_TIMES]]
    found += [unpack_values(part) for part in parts[_TIMES:]]
    return Rollups._make(found)


def keep_rollups(rollups: Rollups) -> bytes:
    """As they are: of the coarse ones there are few, and a chart opens hundreds."""
    return b"".join(part.tobytes() for part in _parts(rollups))


def read_rollups(data: bytes) -> Rollups:
    width = len(data) // len(_KINDS)
    parts = []
    for number, code in enumerate(_KINDS):
        part: array[Any] = array(code)
        part.frombytes(data[number * width : (number + 1) * width])
        parts.append(part)
    return Rollups._make(parts)


def sampled(rollups: Rollups) -> Column:
    """The least and the greatest point of every group, in order; of a group without a number that there is none."""
    found = Column.empty()
    for row in range(len(rollups.points)):
        least = (rollups.min_steps[row], rollups.min_ats[row], rollups.mins[row])
        most = (rollups.max_steps[row], rollups.max_ats[row], rollups.maxs[row])
        if not rollups.numbers[row]:
            least = most = (rollups.first_steps[row], rollups.first_ats[row], math.nan)
        first, second = (least, most) if least[:2] <= most[:2] else (most, least)
        _add(found, first)
        if second != first and second[2] == second[2]:
            _add(found, second)
    return found


def _parts(rollups: Rollups) -> list[Any]:
    return list(rollups)


def _add(column: Column, point: tuple[int, float, float]) -> None:
    column.steps.append(point[0])
    column.ats.append(point[1])
    column.values.append(point[2])


def _without_nan(values: array[float], instead: float) -> array[float]:
    return array("d", [value if value == value else instead for value in values])


def _is_finite(values: array[float]) -> bool:
    return math.isfinite(sum(values))
