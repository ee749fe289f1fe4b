"""Reading points of metrics: all of them, or as many as a chart draws. They lie in chunks, in tails that have not
become chunks yet, and in rows of the version before; readers see one metric, in order. Of points that a client may have
sent again exact repeats are seen once.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from sqlalchemy import Connection, case, select

from windlass.tracking import rollups
from windlass.tracking.blocks import NO_STEP, unpack
from windlass.tracking.columns import Arrived, Column, joined, unpack_column
from windlass.tracking.compaction import FULL
from windlass.tracking.rollups import COARSE, GROUP, Rollups
from windlass.tracking.tables import chunks, points, tails

Span = tuple[float, float]  # from and to, both included
_ALWAYS: Span = (-math.inf, math.inf)
_CHUNKS_AT_ONCE = 100  # in one query
_NAMES_AT_ONCE = 500
_CHUNKS = select(
    chunks.c.name, chunks.c.seq, chunks.c.data, case((chunks.c.data.is_(None), chunks.c.groups)).label("groups")
)


class Reading(NamedTuple):
    """A point as it was logged: `value` may be NaN or infinite."""

    step: int | None
    at: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What part of a metric is wanted. Points without a step have no place among steps."""

    steps: Span | None = None
    times: Span | None = None

    def cut(self, column: Column) -> Column:
        if self.steps is None and self.times is None:
            return column
        (low, high), (begin, end) = self.steps or _ALWAYS, self.times or _ALWAYS
        rows = [
            row
            for row, (step, at) in enumerate(zip(column.steps, column.ats, strict=True))
            if low <= step <= high and begin <= at <= end and not (self.steps and step == NO_STEP)
        ]
        if len(rows) == len(column.steps):
            return column
        return column.picked(rows)

    def touches(self, head: Any) -> bool:
        (low, high), (begin, end) = self.steps or _ALWAYS, self.times or _ALWAYS
        return (
            _step(head.last_step) >= low
            and _step(head.first_step) <= high
            and begin <= head.latest
            and head.earliest <= end
        )

    def holds(self, head: Any) -> bool:
        """Whether all of a chunk is wanted."""
        (low, high), (begin, end) = self.steps or _ALWAYS, self.times or _ALWAYS
        in_steps = self.steps is None or (
            head.first_step is not None and low <= head.first_step and head.last_step <= high
        )
        return in_steps and begin <= head.earliest and head.latest <= end


def load_history(
    tx: Connection, run_id: str, name: str, *, limit: int | None = None, after: Reading | None = None, passed: int = 1
) -> list[Reading]:
    """Points in the order of (at, step, value); NaN comes before numbers of the same time and step. With `after`, what
    follows that point: the last one of a page begins the next. `passed`: how many just like it have been read."""
    heads, loose = _load_heads(tx, run_id, [name])[name], _load_loose(tx, run_id, [name])[name]
    page = _Page(after)
    page.add(loose.once)
    border = None
    for some, border in decide_openings(heads, after=after, whole=limit is None):
        for column in _load_chunks(tx, run_id, name, some):
            page.add(column)
        if limit is not None and border is not None and page.count_before(border) >= limit + passed:
            break
    again = _readings(_cut(loose.again, after, border))
    return _following(_sorted(page.readings(border), again), after, passed)[:limit]


def decide_openings(heads: Sequence[Any], *, after: Reading | None, whole: bool) -> Iterator[tuple[Sequence[Any], Any]]:
    """In which order chunks are opened for a page, and before which moment nothing is missing then (None: nothing is).
    First together all that may reach across its beginning, then one by one. Pure."""
    wanted = sorted((one for one in heads if after is None or one.latest >= after.at), key=lambda one: one.earliest)
    number = sum(one.earliest <= after.at for one in wanted) if after else 0
    number = len(wanted) if whole else max(1, number)
    first = 0
    while first < len(wanted):
        yield wanted[first:number], wanted[number].earliest if number < len(wanted) else None
        first, number = number, number + 1


class _Page:
    """Points of chunks in whatever order they are opened, and how many of them come before a moment."""

    def __init__(self, after: Reading | None) -> None:
        self._after = after
        self._columns: list[Column] = []
        self._waiting: list[float] = []  # a heap: moments that are not before the last border
        self._before = 0

    def add(self, column: Column) -> None:
        column = _cut(column, self._after)
        self._columns.append(column)
        for at in column.ats:
            heapq.heappush(self._waiting, at)

    def count_before(self, border: float) -> int:
        """`border` never goes back."""
        while self._waiting and self._waiting[0] < border:
            heapq.heappop(self._waiting)
            self._before += 1
        return self._before

    def readings(self, border: float | None) -> list[Reading]:
        return [one for column in self._columns for one in _readings(_cut(column, None, border))]


def _cut(column: Column, after: Reading | None, border: float | None = None) -> Column:
    """Rows from `after` on, with those that are just like it, and before `border`. Where points come late most rows of
    a chunk are not of the page, and are left here, before anything is made of them."""
    if after is None and border is None:
        return column
    low, end = after.at if after else -math.inf, math.inf if border is None else border
    rows = [row for row, at in enumerate(column.ats) if low <= at and (at < end or border is None)]
    if after is not None:
        first = _key(after)
        rows = [row for row in rows if column.ats[row] > low or _key(_reading(column, row)) >= first]
    return column if len(rows) == len(column.ats) else column.picked(rows)


def load_points(tx: Connection, run_id: str, names: Sequence[str]) -> dict[str, Column]:
    """All points of these metrics, in the order of (step, at)."""
    found: dict[str, Column] = {}
    for name, lies in _load_places(tx, run_id, names):
        whole = Column.empty()
        for chunk in _load_chunks(tx, run_id, name, lies.heads, lies.opened):
            whole.extend(chunk)
        found[name] = joined(whole, lies.loose)
    return found


def load_series(
    tx: Connection, run_id: str, names: Iterable[str], *, most: int, window: Window | None = None
) -> dict[str, list[Reading]]:
    """About `most` points of each metric in the order of (step, at): all of them, or the least and the greatest of
    every stretch, and both ends."""
    places = _load_places(tx, run_id, list(names))
    return {name: _sampled(tx, run_id, name, lies, window or Window(), most) for name, lies in places}


def load_sampled(
    tx: Connection, run_ids: Sequence[str], name: str, *, steps: tuple[int, int] | None = None, most: int
) -> dict[str, list[Reading]]:
    """About `most` points of one metric in each of these runs, as `load_series`; `steps` are the first and last wanted.
    Runs without any are left out."""
    window = Window(steps=steps)
    found = {run_id: load_series(tx, run_id, [name], most=most, window=window)[name] for run_id in run_ids}
    return {run_id: readings for run_id, readings in found.items() if readings}


def load_rollups(tx: Connection, run_id: str, name: str, *, most: int, window: Window | None = None) -> Rollups:
    """A metric in at most `most` stretches: least, greatest, mean and extent of each."""
    [(_, lies)] = _load_places(tx, run_id, [name])
    return rollups.bucketed(_load_fine(tx, run_id, name, lies, window or Window(), buckets=most), most)


def _sampled(tx: Connection, run_id: str, name: str, lies: _Place, window: Window, most: int) -> list[Reading]:
    buckets = max(1, (most - 2) // 2)
    fine = _load_fine(tx, run_id, name, lies, window, buckets=buckets)
    count = len(fine.points)
    if count <= most:
        return _readings(rollups.sampled(fine))
    inner = rollups.bucketed(fine.cut(1, count - 1), buckets)
    parts = (fine.cut(0, 1), inner, fine.cut(count - 1, count))  # both ends, whatever they are
    return [reading for part in parts for reading in _readings(rollups.sampled(part))]


def _load_fine(tx: Connection, run_id: str, name: str, lies: _Place, window: Window, *, buckets: int) -> Rollups:
    """Roll-ups that are finer than what is wanted, or every point as one."""
    heads = [head for head in lies.heads if window.touches(head)]
    loose = Arrived(window.cut(lies.loose.once), window.cut(lies.loose.again))
    count = sum(head.points for head in heads)
    if count < GROUP * buckets:
        column = Column.empty()
        for chunk in _load_chunks(tx, run_id, name, heads, lies.opened):
            column.extend(window.cut(chunk))
        return rollups.of_points(joined(column, loose))
    # The first and the last one point by point, and those of which not all is wanted.
    cut = [head for head in heads if head in (heads[0], heads[-1]) or not window.holds(head)]
    opened = dict(zip((head.seq for head in cut), _load_chunks(tx, run_id, name, cut, lies.opened), strict=True))
    kept = _load_rollups(tx, run_id, name, coarse=count >= COARSE * buckets)
    found = Rollups.empty()
    for head in heads:
        if head.seq in opened:
            found.extend(rollups.of_points(window.cut(opened[head.seq])))
        else:
            found.extend(kept[head.seq]())
    found.extend(rollups.of_points(loose.ordered()[0]))
    return _in_order(found)


def _load_rollups(tx: Connection, run_id: str, name: str, *, coarse: bool) -> dict[int, Callable[[], Rollups]]:
    """By the number of a chunk; unpacked when they are asked for."""
    field, read = (chunks.c.coarse, rollups.read_rollups) if coarse else (chunks.c.groups, rollups.unpack_rollups)
    rows = tx.execute(select(chunks.c.seq, field).where(chunks.c.run_id == run_id, chunks.c.name == name))
    return {seq: partial(read, data) for seq, data in rows}


def _in_order(found: Rollups) -> Rollups:
    keys = list(zip(found.first_steps, found.first_ats, strict=True))
    if all(one <= other for one, other in pairwise(keys)):
        return found
    return found.picked(sorted(range(len(keys)), key=keys.__getitem__))


# ---- where points lie ------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Of the points of one metric. `opened`: chunks that were read together with those of others, by number."""

    heads: Sequence[Any]
    loose: Arrived
    opened: Mapping[int, Any]


def _load_places(tx: Connection, run_id: str, names: Sequence[str]) -> Iterator[tuple[str, _Place]]:
    """Of many metrics together: a run may have ten thousand, with a few points each."""
    loose = _load_loose(tx, run_id, names)
    for start in range(0, len(names), _NAMES_AT_ONCE):
        some = names[start : start + _NAMES_AT_ONCE]
        heads = _load_heads(tx, run_id, some)
        opened: dict[str, dict[int, Any]] = {name: {} for name in some}
        few = [name for name in some if 0 < sum(head.points for head in heads[name]) <= FULL]
        for row in tx.execute(_CHUNKS.where(chunks.c.run_id == run_id, chunks.c.name.in_(few))) if few else ():
            opened[row.name][row.seq] = row
        for name in some:
            yield name, _Place(heads[name], loose[name], opened[name])


def _load_heads(tx: Connection, run_id: str, names: Sequence[str]) -> dict[str, list[Any]]:
    """What is known of their chunks without opening them, in the order of their points."""
    columns = [column for column in chunks.c if column.name not in ("run_id", "coarse", "groups", "data")]
    query = select(*columns).where(chunks.c.run_id == run_id, chunks.c.name.in_(list(names)))
    found: dict[str, list[Any]] = {name: [] for name in names}
    for row in sorted(tx.execute(query), key=lambda row: (_step(row.first_step), row.first_at)):
        found[row.name].append(row)
    return found


def _load_chunks(
    tx: Connection, run_id: str, name: str, heads: Sequence[Any], opened: Mapping[int, Any] | None = None
) -> Iterator[Column]:
    """The points of each; of one that has only roll-ups by now the least and greatest of these."""
    for start in range(0, len(heads), _CHUNKS_AT_ONCE):
        some = [head.seq for head in heads[start : start + _CHUNKS_AT_ONCE]]
        at_hand = opened or {}
        if any(seq not in at_hand for seq in some):
            query = _CHUNKS.where(chunks.c.run_id == run_id, chunks.c.name == name, chunks.c.seq.in_(some))
            at_hand = {row.seq: row for row in tx.execute(query)}
        for row in (at_hand[seq] for seq in some):
            thinned = row.data is None
            yield rollups.sampled(rollups.unpack_rollups(row.groups)) if thinned else unpack_column(row.data)


def _load_loose(tx: Connection, run_id: str, names: Sequence[str]) -> dict[str, Arrived]:
    """Points that are in no chunk, in order of arrival."""
    found = {name: Arrived.empty() for name in names}
    query = select(points.c.name, points.c.step, points.c.at, points.c.value).order_by(points.c.name, points.c.seq)
    for start in range(0, len(names), _NAMES_AT_ONCE):
        some = list(names[start : start + _NAMES_AT_ONCE])
        for name, step, at, value in tx.execute(query.where(points.c.run_id == run_id, points.c.name.in_(some))):
            column = found[name].again
            column.steps.append(_step(step))
            column.ats.append(at)
            column.values.append(math.nan if value is None else value)
    for data in _load_tails(tx, run_id):
        for block in unpack(data, found.keys()):
            for name, values in zip(block.names, block.values, strict=True):
                column = found[name].once if block.is_once else found[name].again
                column.extend(Column(block.steps, block.ats, values))
    return found


def _load_tails(tx: Connection, run_id: str) -> Iterator[bytes]:
    yield from tx.execute(select(tails.c.data).where(tails.c.run_id == run_id).order_by(tails.c.id)).scalars()


def _step(step: int | None) -> int:
    return NO_STEP if step is None else step


def _reading(column: Column, row: int) -> Reading:
    step = column.steps[row]
    return Reading(None if step == NO_STEP else step, column.ats[row], column.values[row])


def _readings(column: Column) -> list[Reading]:
    return [
        Reading(None if step == NO_STEP else step, at, value)
        for step, at, value in zip(column.steps, column.ats, column.values, strict=True)
    ]


def _sorted(once: Sequence[Reading], again: Sequence[Reading]) -> list[Reading]:
    """In the order of a history; of those that may have been sent again repeats once."""
    known = {_key(one) for one in once} if again else set()
    new: dict[Any, Reading] = {}
    for one in again:
        if (key := _key(one)) not in known:
            new.setdefault(key, one)
    return sorted([*once, *new.values()], key=_key)


def _following(found: list[Reading], after: Reading | None, passed: int) -> list[Reading]:
    if after is None:
        return found
    first, end = bisect_left(found, _key(after), key=_key), bisect_right(found, _key(after), key=_key)
    return found[min(first + passed, end) :]


def _key(one: Reading) -> tuple[float, int, bool, float, float]:
    is_number = not math.isnan(one.value)
    value = one.value if is_number else 0.0
    return one.at, _step(one.step), is_number, value, math.copysign(1.0, value)  # -0.0 is another point than 0.0
