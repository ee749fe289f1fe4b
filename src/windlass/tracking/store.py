"""Writing metric points, and what is known of them as a whole. Points themselves are read by `tracking.series`.

`ingest` takes each point of a job exactly once: the position of its source is moved on in the same transaction, and
readers see all of them, those of TensorBoard aside. `log_points` keeps what a client has sent, as often as it sends it;
of these readers see exact repeats once. Either adds one row of points to a run, and brings its summaries up to date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ARRAY, Connection, Text, bindparam, case, delete, func, insert, literal, select, tuple_, update

from windlass.core.errors import Conflict
from windlass.db.insertion import insert_or_merge
from windlass.tracking.blocks import NO_STEP, Block, Logged, blocks_of, blocks_of_logged, pack, summaries_of
from windlass.tracking.points import (
    Latest,
    MetricPoint,
    PrintedProgress,
    ProgressMark,
    Summary,
    Teller,
    progress_after,
    progress_told,
)
from windlass.tracking.tables import progress, sources, summaries, tails

_ADD_TAIL = insert(tails).inline()  # nobody asks for its id
# Asked with every point that is logged: putting it together each time would take longer than the answer.
_LOCK_ONE = select(func.pg_advisory_xact_lock(func.hashtextextended(bindparam("run_id", type_=Text), 0)))
_SPOOL = re.compile(r"spool:[^:]*\.(\d{1,9}):")
_TELLERS = {teller.value: teller for teller in Teller}
_RUNS_AT_ONCE = 5_000  # in one query: databases take some ten thousand values


def ingest(
    tx: Connection, run_id: str, source: str, batch: Sequence[MetricPoint], *, position: int, next_position: int
) -> None:
    """Store `batch`, which begins at `position` of its source. The caller has skipped what is known already."""
    lock(tx, run_id)
    _move_on(tx, run_id, source, position, next_position)
    # What was read of TensorBoard's files may be read again by another attempt.
    once, again = [[row for row in batch if row.of_board is of_board] for of_board in (False, True)]
    if blocks := [*blocks_of(once, is_once=True), *blocks_of(again)]:
        _put_packed(tx, run_id, packed(blocks))
    if batch:
        known = load_progress(tx, [run_id]).get(run_id)
        _put_mark(tx, run_id, known, progress_after(known, batch, attempt=_attempt_of(source)))


def log_points(tx: Connection, run_id: str, logged: Sequence[Logged]) -> None:
    """Store points that a client sent. The run need not be one of ours. With several runs in one transaction, give
    them in the order of their ids (`GroupedWrites.write(deed, key=run_id)` does): writers that meet in another order
    would wait for each other for ever."""
    lock(tx, run_id)
    if blocks := blocks_of_logged(logged):
        _put_packed(tx, run_id, packed(blocks))


def note_progress(tx: Connection, run_id: str, *, step: int, at: float, attempt: int | None = None) -> None:
    """How far a run is by what a client logs. The caller has the lock on the run's points."""
    known = load_progress(tx, [run_id]).get(run_id)
    _put_mark(tx, run_id, known, progress_told(known, Teller.MLFLOW, step=step, at=at, attempt=attempt))


def note_printed(tx: Connection, run_id: str, printed: PrintedProgress, *, attempt: int | None = None) -> None:
    """How far a run is by what it prints."""
    lock(tx, run_id)
    known = load_progress(tx, [run_id]).get(run_id)
    mark = progress_told(known, Teller.PRINTED, step=printed.step, total=printed.total, at=printed.at, attempt=attempt)
    _put_mark(tx, run_id, known, mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Points on their way to the database: the row that keeps them, and what they alone say of each metric."""

    tail: Mapping[str, Any]
    summaries: Sequence[Mapping[str, Any]]


def packed(blocks: Sequence[Block]) -> Packed:
    """Pure, so that it is done before anybody waits for a transaction."""
    found = summaries_of(blocks)
    told = [
        {
            "name": name,
            "last": summary.last,
            "last_step": summary.last_step,
            "last_at": summary.last_at,
            "min": summary.min,
            "max": summary.max,
            "points": summary.count,
        }
        for name, summary in sorted(found.items())
    ]
    return Packed(tail=_tail(blocks, metrics=len(found)), summaries=told)


def log_packed(tx: Connection, run_id: str, points: Packed) -> None:
    """As `log_points`."""
    lock(tx, run_id)
    _put_packed(tx, run_id, points)


def put_tail(tx: Connection, run_id: str, blocks: Sequence[Block], *, metrics: int) -> None:
    tx.execute(_ADD_TAIL, {"run_id": run_id, **_tail(blocks, metrics=metrics)})


def _tail(blocks: Sequence[Block], *, metrics: int) -> dict[str, Any]:
    data, count = pack(blocks), sum(block.points for block in blocks)
    return {"points": count, "metrics": metrics, "size": len(data), "data": data}


def _put_packed(tx: Connection, run_id: str, points: Packed) -> None:
    tx.execute(_ADD_TAIL, {"run_id": run_id, **points.tail})
    rows = [{"run_id": run_id, **summary} for summary in points.summaries]
    insert_or_merge(tx, summaries, rows, _merged_summary)


def lock(tx: Connection, *run_ids: str) -> None:
    """Let nobody else add points to these runs until this transaction ends: they would wait for each other's summaries
    in whatever order. Whoever changes rows of several runs besides takes these locks before the rows', in the order of
    the runs' ids. SQLite has one writer at a time anyway.
    """
    if not run_ids or tx.dialect.name != "postgresql":
        return
    if len(run_ids) == 1:
        tx.execute(_LOCK_ONE, {"run_id": run_ids[0]})
    else:
        each = func.unnest(literal(sorted(run_ids), ARRAY(Text))).column_valued("id")
        tx.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(each, 0))))


def load_position(tx: Connection, run_id: str, source: str) -> int:
    query = select(sources.c.position).where(sources.c.run_id == run_id, sources.c.source == source)
    return int(tx.execute(query).scalar() or 0)


def load_positions(tx: Connection, run_ids: Sequence[str]) -> dict[tuple[str, str], int]:
    rows = tx.execute(select(sources).where(sources.c.run_id.in_(list(run_ids))))
    return {(row.run_id, row.source): row.position for row in rows}


def load_summaries(tx: Connection, run_ids: Sequence[str]) -> dict[str, dict[str, Summary]]:
    """Of every metric of these runs, by run and name."""
    found: dict[str, dict[str, Summary]] = {}
    for start in range(0, len(run_ids), _RUNS_AT_ONCE):
        some = list(run_ids[start : start + _RUNS_AT_ONCE])
        rows = tx.execute(select(summaries).where(summaries.c.run_id.in_(some)).order_by(summaries.c.name))
        for row in rows:
            found.setdefault(row.run_id, {})[row.name] = Summary(
                last=row.last,
                last_step=row.last_step,
                last_at=row.last_at,
                min=row.min,
                max=row.max,
                count=row.points,
            )
    return found


def load_latest(tx: Connection, run_ids: Sequence[str]) -> dict[str, dict[str, Latest]]:
    """The latest point of every metric of these runs, by run and name: what MLflow calls the metrics of a run. Runs
    without any are left out."""
    found = load_summaries(tx, run_ids)
    return {run_id: {name: one.latest for name, one in of_run.items()} for run_id, of_run in found.items()}


def load_progress(tx: Connection, run_ids: Sequence[str]) -> dict[str, ProgressMark]:
    rows = tx.execute(select(progress).where(progress.c.run_id.in_(list(run_ids))))
    return {
        row.run_id: ProgressMark(
            step=row.step,
            total=row.total,
            at=row.at,
            first_step=row.first_step,
            first_at=row.first_at,
            teller=_TELLERS.get(row.teller),
            attempt=row.attempt,
        )
        for row in rows
    }


def _merged_summary(new: Any) -> dict[str, Any]:
    """What becomes of a summary that is there when another one of newer points comes: as `Summary.joined`."""
    old = summaries.c

    def place(of: Any) -> Any:
        return tuple_(func.coalesce(of.last_step, NO_STEP), func.coalesce(of.last_at, 0.0), func.coalesce(of.last, 0.0))

    is_later = place(new) >= place(old)
    changes = {name: case((is_later, new[name]), else_=old[name]) for name in ("last", "last_step", "last_at")}
    changes["min"] = case((old.min.is_(None), new.min), (new.min < old.min, new.min), else_=old.min)
    changes["max"] = case((old.max.is_(None), new.max), (new.max > old.max, new.max), else_=old.max)
    changes["points"] = old.points + new.points
    return changes


def _move_on(tx: Connection, run_id: str, source: str, position: int, next_position: int) -> None:
    at_source = (sources.c.run_id == run_id, sources.c.source == source)
    if position == 0:
        tx.execute(delete(sources).where(*at_source, sources.c.position == 0))
        taken = tx.execute(select(sources.c.position).where(*at_source)).scalar()
        if taken is None:
            tx.execute(insert(sources).values(run_id=run_id, source=source, position=next_position))
            return
    done = tx.execute(update(sources).where(*at_source, sources.c.position == position).values(position=next_position))
    if done.rowcount != 1:
        raise Conflict(
            f"source {source} of run {run_id} is not at {position} any more", hint="ask where it is, go on there"
        )


def _attempt_of(source: str) -> int | None:
    """The number of the attempt whose spool it is; None of others."""
    found = _SPOOL.match(source)
    return int(found[1]) if found else None


def _put_mark(tx: Connection, run_id: str, known: ProgressMark | None, mark: ProgressMark | None) -> None:
    if mark is None or mark == known:
        return
    values = {
        "step": mark.step,
        "total": mark.total,
        "at": mark.at,
        "first_step": mark.first_step,
        "first_at": mark.first_at,
        "teller": mark.teller,
        "attempt": mark.attempt,
    }
    if known:
        tx.execute(update(progress).where(progress.c.run_id == run_id).values(**values))
    else:
        tx.execute(insert(progress).values(run_id=run_id, **values))
