"""Points of one metric in order, and the few bytes each of them takes. Pure; no numpy, since servers have none.

Steps and times are kept as differences of differences, values as whole numbers, decimals or single floats where nothing
is lost by it, and all of it with its bytes sorted by weight before it is compressed. What comes back is what went in,
bit for bit (one NaN is as good as another).
"""

from __future__ import annotations

import math
import struct
import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate, islice
from operator import le, lt, sub
from typing import Any, NamedTuple

_LEVEL = 6
_WIDTHS = (("b", 2**7), ("h", 2**15), ("i", 2**31), ("q", 2**63))
_TIMES = (1e3, 1e6)  # milliseconds, microseconds
_DECIMALS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e6)
_EXACT = 2.0**53
_LOOK_AT = 8


class Column(NamedTuple):
    """`blocks.NO_STEP` stands for a missing step."""

    steps: array[int]
    ats: array[float]
    values: array[float]

    @classmethod
    def empty(cls) -> Column:
        return cls(array("q"), array("d"), array("d"))

    def extend(self, other: Column) -> None:
        self.steps.extend(other.steps)
        self.ats.extend(other.ats)
        self.values.extend(other.values)

    def cut(self, start: int, end: int) -> Column:
        return Column(self.steps[start:end], self.ats[start:end], self.values[start:end])

    def picked(self, rows: Sequence[int]) -> Column:
        parts: list[Any] = list(self)
        return Column._make(array(part.typecode, [part[row] for row in rows]) for part in parts)


class Arrived(NamedTuple):
    """Points by how they were sent: each one once, or some of them again. Of the latter, one that is there already is
    the same one."""

    once: Column
    again: Column

    @classmethod
    def empty(cls) -> Arrived:
        return cls(Column.empty(), Column.empty())

    @classmethod
    def split(cls, column: Column, is_once: Sequence[bool]) -> Arrived:
        if all(is_once) or not any(is_once):
            return cls(column, Column.empty()) if all(is_once) else cls(Column.empty(), column)
        rows = range(len(is_once))
        return cls(
            column.picked([row for row in rows if is_once[row]]),
            column.picked([row for row in rows if not is_once[row]]),
        )

    def ordered(self) -> tuple[Column, list[bool]]:
        """All of them in order, and which of them were sent once."""
        whole = self.once.cut(0, len(self.once.steps))
        certain = len(whole.steps)
        whole.extend(self.again)
        rows = order_of(whole, certain=certain)
        if rows is None:
            return whole, [row < certain for row in range(len(whole.steps))]
        return whole.picked(rows), [row < certain for row in rows]


def joined(kept: Column, arrived: Arrived) -> Column:
    """All of them in order. `kept` is extended."""
    kept.extend(arrived.once)
    certain = len(kept.steps)
    kept.extend(arrived.again)
    return ordered(kept, certain=certain)


def ordered(column: Column, *, certain: int = 0) -> Column:
    """By (step, at), and as they arrived where both are the same. The first `certain` rows are each a point of its own;
    of the others exact repeats are seen once."""
    rows = order_of(column, certain=certain)
    return column if rows is None else column.picked(rows)


def order_of(column: Column, *, certain: int) -> Sequence[int] | None:
    """Rows in the order of `ordered`; None: they are so already."""
    steps, ats, values = column
    if all(map(lt, steps, islice(steps, 1, None))):
        return None
    keys = list(zip(steps, ats, strict=True))
    if all(map(lt, keys, islice(keys, 1, None))):
        return None
    order: Sequence[int] = range(len(keys))
    if not all(map(le, keys, islice(keys, 1, None))):
        order = sorted(order, key=keys.__getitem__)
    if certain >= len(keys):
        return order
    kept, before, seen = [], None, set[str]()
    for row in order:
        if keys[row] != before:
            before, seen = keys[row], set()
        mark = values[row].hex()  # -0.0 is not 0.0, and all NaN are one
        if row < certain or mark not in seen:
            seen.add(mark)
            kept.append(row)
    return kept


def pack_column(column: Column) -> bytes:
    return pack_parts([pack_ints(column.steps), pack_times(column.ats), pack_values(column.values)])


def unpack_column(data: bytes) -> Column:
    steps, ats, values = unpack_parts(data)
    return Column(unpack_ints(steps), unpack_times(ats), unpack_values(values))


# ---- parts -----------------------------------------------------------------------------------------------------------


def pack_parts(parts: Sequence[bytes]) -> bytes:
    sizes = struct.pack(f"<B{len(parts)}I", len(parts), *map(len, parts))
    return zlib.compress(sizes + b"".join(parts), _LEVEL)


def unpack_parts(data: bytes) -> list[bytes]:
    plain = zlib.decompress(data)
    sizes = struct.unpack_from(f"<{plain[0]}I", plain, 1)
    place, parts = 1 + 4 * len(sizes), []
    for size in sizes:
        parts.append(plain[place : place + size])
        place += size
    return parts


def pack_ints(numbers: Sequence[int]) -> bytes:
    """Differences of differences, as narrow as they can be: nothing at all where numbers go up evenly."""
    first = list(map(sub, islice(numbers, 1, None), numbers))
    second = list(map(sub, islice(first, 1, None), first))
    most = max(max(second, default=0), -1 - min(second, default=0))
    width = "z" if not any(second) else next((code for code, end in _WIDTHS if most < end), "")
    if not width or not -(2**63) <= (first[0] if first else 0) < 2**63:
        return b"r" + struct.pack("<I", len(numbers)) + _by_weight(array("q", numbers))
    head = struct.pack("<cIqq", width.encode(), len(numbers), numbers[0] if numbers else 0, first[0] if first else 0)
    return head if width == "z" else head + _by_weight(array(width, second))


def unpack_ints(data: bytes) -> array[int]:
    width = data[:1].decode()
    if width == "r":
        return _from_weight(data[5:])
    count, start, step = struct.unpack_from("<Iqq", data, 1)
    if width == "z":
        return array("q", range(start, start + count * step, step) if step else [start] * count)
    second = _from_weight(data[21:])
    return array("q", accumulate(accumulate(second, initial=step), initial=start))


def pack_times(ats: Sequence[float]) -> bytes:
    for code, unit in enumerate(_TIMES):
        if (whole := _whole(ats, unit)) is not None:
            return bytes([code]) + pack_ints(whole)
    return b"\xff" + _by_weight(array("d", ats))


def unpack_times(data: bytes) -> array[float]:
    if data[0] == 0xFF:
        return _from_weight(data[1:])
    unit = _TIMES[data[0]]
    return array("d", [number / unit for number in unpack_ints(data[1:])])


def pack_values(values: array[float]) -> bytes:
    single = array("f", values)
    if array("d", single).tobytes() == values.tobytes():
        numbers = _whole(values, 1.0)
        return b"f" + _by_weight(single) if numbers is None else b"\x00" + pack_ints(numbers)
    for code, unit in enumerate(_DECIMALS):
        if (numbers := _whole(values, unit)) is not None:
            return bytes([code]) + pack_ints(numbers)
    return b"d" + _by_weight(values)


def unpack_values(data: bytes) -> array[float]:
    kind = data[:1]
    if kind == b"f":
        return array("d", _from_weight(data[1:]))
    if kind == b"d":
        return _from_weight(data[1:])
    unit = _DECIMALS[data[0]]
    return array("d", [number / unit for number in unpack_ints(data[1:])])


def _whole(numbers: Sequence[float], unit: float) -> list[int] | None:
    """As whole numbers of 1/unit, if that is what they are."""
    few = numbers[:: max(1, len(numbers) // _LOOK_AT)]
    if not all(_is_whole(number, unit) for number in few):
        return None
    try:
        found = [round(number * unit) for number in numbers]
    except (ValueError, OverflowError):  # NaN and infinities
        return None
    back = array("d", [number / unit for number in found])
    exact = back.tobytes() == (numbers if isinstance(numbers, array) else array("d", numbers)).tobytes()
    return found if exact and max(map(abs, found), default=0) < _EXACT else None


def _is_whole(number: float, unit: float) -> bool:
    return math.isfinite(number) and abs(number * unit) < _EXACT and round(number * unit) / unit == number


def _by_weight(numbers: array[Any]) -> bytes:
    """First the lowest bytes of all numbers, then the next ones: the highest are alike, and take no room then."""
    data, width = numbers.tobytes(), numbers.itemsize
    return numbers.typecode.encode() + b"".join(data[number::width] for number in range(width))


def _from_weight(data: bytes) -> array[Any]:
    numbers: array[Any] = array(data[:1].decode())
    width, count = numbers.itemsize, (len(data) - 1) // numbers.itemsize
    plain = bytearray(width * count)
    for number in range(width):
        plain[number::width] = data[1 + number * count : 1 + (number + 1) * count]
    numbers.frombytes(plain)
    return numbers
