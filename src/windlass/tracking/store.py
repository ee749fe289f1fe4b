"""Writing and reading metric points. `ingest` takes each point exactly once: the position of its source is moved on in
the same transaction that stores the points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from windlass.core.errors import Conflict
from windlass.tracking.points import MetricPoint, ProgressMark, Summary, progress_after
from windlass.tracking.tables import points, progress, sources, summaries


def ingest(
    tx: Connection, run_id: str, source: str, batch: Sequence[MetricPoint], *, position: int, next_position: int
) -> None:
    """Store `batch`, which begins at `position` of its source. The caller has skipped what is known already."""
    lock(tx, run_id)
    _move_on(tx, run_id, source, position, next_position)
    if not batch:
        return
    before = load_summaries(tx, [run_id]).get(run_id, {})
    after = dict(before)
    rows: list[dict[str, Any]] = []
    for point in batch:
        for name, value in point.values.items():
            seen = after.get(name, Summary())
            rows.append(
                {
                    "run_id": run_id,
                    "name": name,
                    "seq": seen.count,
                    "step": point.step,
                    "at": point.at,
                    "value": None if math.isnan(value) else value,
                }
            )
            after[name] = seen.plus(value, point.step)
    if rows:
        tx.execute(insert(points), rows)
    for name, summary in after.items():
        if summary is not before.get(name):
            _put_summary(tx, run_id, name, summary, known=name in before)
    _put_progress(tx, run_id, batch)


def lock(tx: Connection, run_id: str) -> None:
    """Let nobody else add points to the run until this transaction ends: the numbers of points follow each other.
    SQLite has one writer at a time anyway.
    """
    if tx.dialect.name == "postgresql":
        tx.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(run_id, 0))))


def load_position(tx: Connection, run_id: str, source: str) -> int:
    query = select(sources.c.position).where(sources.c.run_id == run_id, sources.c.source == source)
    return int(tx.execute(query).scalar() or 0)


def load_positions(tx: Connection, run_ids: Sequence[str]) -> dict[tuple[str, str], int]:
    rows = tx.execute(select(sources).where(sources.c.run_id.in_(list(run_ids))))
    return {(row.run_id, row.source): row.position for row in rows}


def load_summaries(tx: Connection, run_ids: Sequence[str]) -> dict[str, dict[str, Summary]]:
    found: dict[str, dict[str, Summary]] = {}
    rows = tx.execute(select(summaries).where(summaries.c.run_id.in_(list(run_ids))).order_by(summaries.c.name))
    for row in rows:
        found.setdefault(row.run_id, {})[row.name] = Summary(
            last=row.last, last_step=row.last_step, min=row.min, max=row.max, count=row.points
        )
    return found


def load_progress(tx: Connection, run_ids: Sequence[str]) -> dict[str, ProgressMark]:
    rows = tx.execute(select(progress).where(progress.c.run_id.in_(list(run_ids))))
    return {
        row.run_id: ProgressMark(
            step=row.step, total=row.total, at=row.at, first_step=row.first_step, first_at=row.first_at
        )
        for row in rows
    }


def load_series(tx: Connection, run_id: str, names: Iterable[str], *, most: int) -> dict[str, list[Any]]:
    """Rows (step, at, value) per metric in order of arrival; thinned evenly to about `most` points, the last kept."""
    series = {}
    for name in names:
        of_metric = (points.c.run_id == run_id, points.c.name == name)
        count = int(tx.execute(select(func.count()).select_from(points).where(*of_metric)).scalar() or 0)
        every = max(1, math.ceil(count / most))
        query = select(points.c.step, points.c.at, points.c.value).where(*of_metric).order_by(points.c.seq)
        if every > 1:
            query = query.where((points.c.seq % every == 0) | (points.c.seq == count - 1))
        series[name] = list(tx.execute(query))
    return series


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


def _put_summary(tx: Connection, run_id: str, name: str, summary: Summary, *, known: bool) -> None:
    values = {
        "last": summary.last,
        "last_step": summary.last_step,
        "min": summary.min,
        "max": summary.max,
        "points": summary.count,
    }
    if known:
        tx.execute(update(summaries).where(summaries.c.run_id == run_id, summaries.c.name == name).values(**values))
    else:
        tx.execute(insert(summaries).values(run_id=run_id, name=name, **values))


def _put_progress(tx: Connection, run_id: str, batch: Sequence[MetricPoint]) -> None:
    known = load_progress(tx, [run_id]).get(run_id)
    mark = progress_after(known, batch)
    if mark is None or mark == known:
        return
    values = {
        "step": mark.step,
        "total": mark.total,
        "at": mark.at,
        "first_step": mark.first_step,
        "first_at": mark.first_at,
    }
    if known:
        tx.execute(update(progress).where(progress.c.run_id == run_id).values(**values))
    else:
        tx.execute(insert(progress).values(run_id=run_id, **values))
