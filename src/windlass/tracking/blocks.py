"""Points of one run as they arrive: blocks of rows that carry the same metrics, and the bytes that keep them. Pure.

A row is one `job.log`, or one call of a client; its step and time are kept once for all of its metrics.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from windlass.tracking.points import Latest, MetricPoint, Summary, greatest

NO_STEP = -(2**63)  # stands for a missing step in columns: it comes before all others
_PLAIN, _ZLIB = b"\x01", b"\x02"
_WORTH_PACKING = 256
_FEW = 16  # metrics that are looked for one by one
_HEAD_BYTES = 4_096  # to begin with


class Block(NamedTuple):
    """Rows in order of arrival. `values` has a column for each name. `is_once`: every row was sent exactly once; of
    others the sender may have sent some again."""

    names: tuple[str, ...]
    steps: array[int]
    ats: array[float]
    values: list[array[float]]
    is_once: bool = False

    @property
    def points(self) -> int:
        return len(self.names) * len(self.steps)


class Logged(NamedTuple):
    """One point that came by an API. `at` is in seconds; `value` may be NaN or infinite."""

    name: str
    value: float
    at: float
    step: int | None = 0


def blocks_of(rows: Iterable[MetricPoint], *, is_once: bool = False) -> list[Block]:
    """Rows of the same metrics together, each in its order of arrival."""
    alike: dict[tuple[str, ...], list[MetricPoint]] = {}
    for row in rows:
        if row.values:
            alike.setdefault(tuple(row.values), []).append(row)
    return [_block(names, found, is_once=is_once) for names, found in alike.items()]


def blocks_of_logged(points: Sequence[Logged]) -> list[Block]:
    """A client sends points one by one, those of one step mostly together. A metric that comes twice in a row of the
    same step and time begins another."""
    rows: list[MetricPoint] = []
    values: dict[str, float] = {}
    place: tuple[int | None, float] | None = None
    for name, value, at, step in points:
        if place != (step, at) or name in values:
            values, place = {}, (step, at)
            rows.append(MetricPoint(at=at, step=step, values=values))
        values[name] = value
    if len(rows) > 64 and len(rows) == len(points):
        return _by_metric(points)
    return blocks_of(rows)


def blocks_of_columns(
    names: tuple[str, ...], values: Sequence[float], ats: Sequence[float], steps: Sequence[int]
) -> list[Block]:
    """As `blocks_of_logged`, of points that are given by columns. The same metrics at every step, which is what clients
    send as a rule, are cut into theirs at once."""
    width = len(set(names))
    rows, left = divmod(len(names), width)
    is_regular = (
        not left
        and names == names[:width] * rows
        and all(steps[n::width] == steps[::width] and ats[n::width] == ats[::width] for n in range(1, width))
    )
    if not is_regular:
        return blocks_of_logged(list(map(Logged, names, values, ats, steps)))
    columns = [array("d", values[n::width]) for n in range(width)]
    return [Block(names[:width], array("q", steps[::width]), array("d", ats[::width]), columns)]


def _by_metric(points: Sequence[Logged]) -> list[Block]:
    """Where every point has a step or time of its own: a block for each metric."""
    found: dict[str, list[Logged]] = {}
    for point in points:
        found.setdefault(point.name, []).append(point)
    return [
        Block(
            (name,),
            array("q", [NO_STEP if step is None else step for _, _, _, step in of_name]),
            array("d", [at for _, _, at, _ in of_name]),
            [array("d", [value for _, value, _, _ in of_name])],
        )
        for name, of_name in found.items()
    ]


def merged(blocks: Iterable[Block]) -> list[Block]:
    """Those of the same metrics in one, in the order they are given."""
    found: dict[tuple[tuple[str, ...], bool], Block] = {}
    for block in blocks:
        known = found.get((block.names, block.is_once))
        if known is None:
            columns = [column[:] for column in block.values]
            found[block.names, block.is_once] = Block(block.names, block.steps[:], block.ats[:], columns, block.is_once)
            continue
        known.steps.extend(block.steps)
        known.ats.extend(block.ats)
        for column, more in zip(known.values, block.values, strict=True):
            column.extend(more)
    return list(found.values())


def pack(blocks: Sequence[Block]) -> bytes:
    head = json.dumps([[block.names, len(block.steps)] for block in blocks], separators=(",", ":")).encode()
    parts = [struct.pack("<I", len(head)), head]
    for block in blocks:
        parts += [block.steps.tobytes(), block.ats.tobytes(), *(column.tobytes() for column in block.values)]
    # At the end, where the version before, which knows nothing of it, does not look.
    parts.append(bytes(block.is_once for block in blocks))
    data = b"".join(parts)
    return _PLAIN + data if len(data) < _WORTH_PACKING else _ZLIB + zlib.compress(data, 1)


def unpack(data: bytes, wanted: Collection[str] | None = None) -> list[Block]:
    """All of it, or of the metrics that are wanted: who reads a few of very many pays for these."""
    if wanted is not None and len(wanted) <= _FEW and not _may_have(data, wanted):
        return []
    plain = zlib.decompress(data[1:]) if data[:1] == _ZLIB else data[1:]
    (length,) = struct.unpack_from("<I", plain)
    view = memoryview(plain)
    place = 4 + length
    heads = json.loads(plain[4:place])
    marks = plain[_end(heads, place) :].ljust(len(heads), b"\0")  # the version before has none
    blocks = []
    for (names, rows), mark in zip(heads, marks, strict=True):
        width = 8 * rows
        numbers = [number for number, name in enumerate(names) if wanted is None or name in wanted]
        if numbers:
            columns: list[Any] = []
            for number in (-2, -1, *numbers):
                column: array[Any] = array("q" if number == -2 else "d")
                start = place + width * (2 + number)
                column.frombytes(view[start : start + width])
                columns.append(column)
            found = tuple(names[number] for number in numbers)
            blocks.append(Block(found, columns[0], columns[1], columns[2:], bool(mark)))
        place = _end([(names, rows)], place)
    return blocks


def _end(heads: Iterable[tuple[Sequence[str], int]], start: int) -> int:
    """Where the columns of blocks that begin there end."""
    return start + sum(8 * rows * (2 + len(names)) for names, rows in heads)


def _may_have(data: bytes, wanted: Collection[str]) -> bool:
    """Whether one of these names is in its head, which is looked for without unpacking the rest or taking it apart."""
    if data[:1] == _ZLIB:
        unpacker = zlib.decompressobj()
        start = unpacker.decompress(data[1:], _HEAD_BYTES)
        (length,) = struct.unpack_from("<I", start)
        if length + 4 > len(start):
            start += unpacker.decompress(unpacker.unconsumed_tail, 4 + length - len(start))
    else:
        start = data[1:]
        (length,) = struct.unpack_from("<I", start)
    head = start[4 : 4 + length]
    return any(json.dumps(name).encode() in head for name in wanted)


def summaries_of(blocks: Iterable[Block]) -> dict[str, Summary]:
    """What these points alone say of each metric."""
    found: dict[str, Summary] = {}
    for block in blocks:
        newest = max(zip(block.steps, block.ats, strict=True))
        rows = [row for row, place in enumerate(zip(block.steps, block.ats, strict=True)) if place == newest]
        step = None if newest[0] == NO_STEP else newest[0]
        for name, column in zip(block.names, block.values, strict=True):
            last = column[rows[0]] if len(rows) == 1 else greatest(column[row] for row in rows)
            summary = _summary(column, Latest(value=last, step=step, at=newest[1]))
            known = found.get(name)
            found[name] = summary if known is None else known.joined(summary)
    return found


def _summary(column: array[float], latest: Latest) -> Summary:
    numbers: Sequence[float] = column
    if math.isnan(sum(column)):  # of NaN, or of infinities of both signs
        numbers = [value for value in column if value == value]
    return Summary(
        last=None if math.isnan(latest.value) else latest.value,
        last_step=latest.step,
        last_at=latest.at,
        min=min(numbers, default=None),
        max=max(numbers, default=None),
        count=len(column),
    )


def _block(names: tuple[str, ...], rows: Sequence[MetricPoint], *, is_once: bool) -> Block:
    return Block(
        names,
        array("q", [NO_STEP if row.step is None else row.step for row in rows]),
        array("d", [row.at for row in rows]),
        [array("d", column) for column in zip(*(row.values.values() for row in rows), strict=True)],
        is_once,
    )
