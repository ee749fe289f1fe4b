"""Making chunks of tails, thinning and removing them. Points are read and packed outside of any write: others write
meanwhile, and what they add is not touched. A write goes through only while everything it replaces is still what was
read, so two servers that do the same do it once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, true, update

from windlass.core.errors import Conflict
from windlass.db.database import Database
from windlass.tracking.blocks import NO_STEP, Block, merged, pack, unpack
from windlass.tracking.columns import Arrived, Column, joined, pack_column, unpack_column
from windlass.tracking.compaction import Compaction, Deed, Head, Tail, decide_fillings, pieces
from windlass.tracking.rollups import COARSE, GROUP, grouped, keep_rollups, of_points, pack_rollups
from windlass.tracking.store import put_tail
from windlass.tracking.tables import chunks, points, tails

_NAMES_AT_ONCE = 500
_ROWS_AT_ONCE = 20_000
_CHUNKS_AT_ONCE = 500
_GONE = "tails are gone or have grown: another server has merged them"


def load_busy(tx: Connection, *, many: int, enough: int, settled: int) -> list[str]:
    """Runs whose tails may be worth a look."""
    count, total = func.count(), func.sum(tails.c.points)
    is_busy = (count >= many) | (total >= enough) | (func.max(tails.c.id) <= settled)
    return list(tx.execute(select(tails.c.run_id).group_by(tails.c.run_id).having(is_busy)).scalars())


def load_newest(tx: Connection) -> int:
    """The id of the newest tail of all."""
    return int(tx.execute(select(func.max(tails.c.id))).scalar() or 0)


def load_tails(tx: Connection, run_id: str) -> list[Tail]:
    query = select(tails.c.id, tails.c.points, tails.c.metrics, tails.c.size).where(tails.c.run_id == run_id)
    return [Tail(**row._mapping) for row in tx.execute(query.order_by(tails.c.id))]


def compact(db: Database, run_id: str, compaction: Compaction) -> None:
    """Raises Conflict if somebody else has done something of it meanwhile: then there is nothing left to do."""
    with db.read() as tx:
        data = _load_data(tx, compaction.tail_ids)
        blocks = merged(block for packed in data for block in unpack(packed))
        rows = _new_chunks(tx, run_id, blocks) if compaction.deed is Deed.CHUNK else None
    kept = pack(blocks) if rows is None else b""
    with db.write() as tx:
        _lock(tx, run_id)
        if _load_data(tx, compaction.tail_ids) != data:  # a merged tail has the id of its oldest, and more points
            raise Conflict(_GONE)
        if rows is None:
            _merge_tails(tx, compaction.tail_ids, blocks, kept)
        else:
            tx.execute(delete(tails).where(tails.c.id.in_(compaction.tail_ids)))
            _put_chunks(tx, rows)


def move_old_points(db: Database, run_id: str) -> bool:
    """Move some points of one metric that the version before has written to a tail. Whether there were any."""
    with db.write() as tx:
        query = select(points.c.name).where(points.c.run_id == run_id).order_by(points.c.name)
        name = tx.execute(query.limit(1)).scalar()
        if name is None:
            return False
        of_metric = (points.c.run_id == run_id, points.c.name == name)
        query = select(points.c.seq, points.c.step, points.c.at, points.c.value).where(*of_metric)
        rows = list(tx.execute(query.order_by(points.c.seq).limit(_ROWS_AT_ONCE)))
        column = Column.empty()
        for row in rows:
            column.steps.append(NO_STEP if row.step is None else row.step)
            column.ats.append(row.at)
            column.values.append(math.nan if row.value is None else row.value)
        put_tail(tx, run_id, [Block((name,), column.steps, column.ats, [column.values])], metrics=1)
        gone = tx.execute(delete(points).where(*of_metric, points.c.seq <= rows[-1].seq))
        if gone.rowcount != len(rows):
            raise Conflict(f"points of {name} in run {run_id} are being moved by another server")
    return True


def thin_chunks(tx: Connection, *, after: float, before: float) -> float | None:
    """Of some chunks whose newest point is of that time keep the roll-ups alone. How far it has come; None: there are
    no more."""
    full = chunks.c.data.is_not(None)
    return _each(tx, after, before, full, lambda key: update(chunks).where(key).values(data=None))


def delete_chunks(tx: Connection, *, after: float, before: float) -> float | None:
    """As `thin_chunks`, but nothing is kept of them. Summaries stay."""
    return _each(tx, after, before, true(), lambda key: delete(chunks).where(key))


# ---- inside ----------------------------------------------------------------------------------------------------------


def _lock(tx: Connection, run_id: str) -> None:
    if tx.dialect.name == "postgresql":
        tx.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"chunks of {run_id}", 0))))


def _load_data(tx: Connection, tail_ids: Sequence[int]) -> list[bytes]:
    found = list(tx.execute(select(tails.c.data).where(tails.c.id.in_(tail_ids)).order_by(tails.c.id)).scalars())
    if len(found) != len(tail_ids):
        raise Conflict(_GONE)
    return found


def _merge_tails(tx: Connection, tail_ids: Sequence[int], blocks: Sequence[Block], data: bytes) -> None:
    """In the place of the oldest: points stay in the order they have come in."""
    first, *others = tail_ids
    tx.execute(delete(tails).where(tails.c.id.in_(others)))
    metrics, count = len({name for block in blocks for name in block.names}), sum(block.points for block in blocks)
    tx.execute(
        update(tails).where(tails.c.id == first).values(points=count, metrics=metrics, size=len(data), data=data)
    )


def _new_chunks(tx: Connection, run_id: str, blocks: Iterable[Block]) -> list[dict[str, Any]]:
    arrived: dict[str, Arrived] = {}
    for block in blocks:
        for name, values in zip(block.names, block.values, strict=True):
            of_metric = arrived.setdefault(name, Arrived.empty())
            column = of_metric.once if block.is_once else of_metric.again
            column.extend(Column(block.steps, block.ats, values))
    names = sorted(arrived)
    rows: list[dict[str, Any]] = []
    for start in range(0, len(names), _NAMES_AT_ONCE):
        some = names[start : start + _NAMES_AT_ONCE]
        heads = _load_heads(tx, run_id, some)
        for name in some:
            rows += _of_metric(tx, run_id, name, heads.get(name, []), arrived.pop(name))
    return rows


def _of_metric(tx: Connection, run_id: str, name: str, heads: Sequence[Head], arrived: Arrived) -> list[dict[str, Any]]:
    next_seq = 1 + max((head.seq for head in heads), default=-1)
    new, is_once = arrived.ordered()
    rows = []
    start = 0
    for filling in decide_fillings(heads, new):
        whole = filling.points
        end = start + len(whole.steps)
        if filling.chunk is not None:
            of_chunk = (chunks.c.run_id == run_id, chunks.c.name == name, chunks.c.seq == filling.chunk)
            whole = unpack_column(tx.execute(select(chunks.c.data).where(*of_chunk)).scalar_one())
            whole = joined(whole, Arrived.split(filling.points, is_once[start:end]))
        start = end
        for number, piece in enumerate(pieces(whole)):
            seq = next_seq if number or filling.chunk is None else filling.chunk
            next_seq += seq == next_seq
            rows.append({"run_id": run_id, "name": name, "seq": seq, **_row(piece)})
    return rows


def _row(column: Column) -> dict[str, Any]:
    groups = grouped(of_points(column), GROUP)
    first, last = column.steps[0], column.steps[-1]
    return {
        "points": len(column.steps),
        "first_step": None if first == NO_STEP else first,
        "last_step": None if last == NO_STEP else last,
        "first_at": column.ats[0],
        "last_at": column.ats[-1],
        "earliest": min(column.ats),
        "latest": max(column.ats),
        "coarse": keep_rollups(grouped(groups, COARSE // GROUP)),
        "groups": pack_rollups(groups),
        "data": pack_column(column),
    }


def _load_heads(tx: Connection, run_id: str, names: Sequence[str]) -> Mapping[str, list[Head]]:
    found: dict[str, list[Head]] = {}
    fields = [chunks.c[name] for name in ("name", "seq", "points", "first_step", "last_step", "first_at", "last_at")]
    query = select(*fields, chunks.c.data.is_(None).label("thinned"))
    for row in tx.execute(query.where(chunks.c.run_id == run_id, chunks.c.name.in_(list(names)))):
        found.setdefault(row.name, []).append(
            Head(
                seq=row.seq,
                points=row.points,
                first=(NO_STEP if row.first_step is None else row.first_step, row.first_at),
                last=(NO_STEP if row.last_step is None else row.last_step, row.last_at),
                thinned=bool(row.thinned),
            )
        )
    return found


def _put_chunks(tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    key = ("run_id", "name", "seq")
    gone = delete(chunks).where(*(chunks.c[name] == bindparam(f"old_{name}") for name in key))
    tx.execute(gone, [{f"old_{name}": row[name] for name in key} for row in rows])
    tx.execute(insert(chunks), [dict(row) for row in rows])


def _each(tx: Connection, after: float, before: float, which: Any, deed: Any) -> float | None:
    query = select(chunks.c.run_id, chunks.c.name, chunks.c.seq, chunks.c.latest)
    query = query.where(chunks.c.latest >= after, chunks.c.latest < before, which).order_by(chunks.c.latest)
    found = list(tx.execute(query.limit(_CHUNKS_AT_ONCE)))
    for row in found:
        tx.execute(deed((chunks.c.run_id == row.run_id) & (chunks.c.name == row.name) & (chunks.c.seq == row.seq)))
    return None if len(found) < _CHUNKS_AT_ONCE else float(found[-1].latest)
