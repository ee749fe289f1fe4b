"""Searching runs by anything that is known of them, those of MLflow's clients too: `metrics.loss < 0.5 and state =
'succeeded' and submitted > '7d'`. The language is that of MLflow's searches; the plain names are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, select

from windlass.core.errors import InvalidInput
from windlass.core.names import unknown
from windlass.core.paging import offset_of, page_token
from windlass.core.quantities import parse_duration
from windlass.experiments.language import (
    MEMBERSHIP,
    NUMERIC,
    TEXTUAL,
    Clause,
    Name,
    check_op,
    parse_filter,
    parse_order,
)
from windlass.experiments.matching import Dialect, compare
from windlass.experiments.runsearch import KINDS, condition_of
from windlass.experiments.tables import experiments, run_params, run_tags, tracked_runs
from windlass.experiments.types import NOTE
from windlass.runs.bulk import in_parts
from windlass.runs.tables import runs
from windlass.tracking.tables import summaries
from windlass.wire.search import FoundPage, FoundRun
from windlass.wire.spec import GROUP

_STATES = {
    "SCHEDULED": "queued",
    "RUNNING": "running",
    "FINISHED": "succeeded",
    "FAILED": "failed",
    "KILLED": "cancelled",
}
_STATE = func.coalesce(
    runs.c.state, case(_STATES, value=tracked_runs.c.status, else_=func.lower(tracked_runs.c.status))
)
_PROJECT = func.coalesce(runs.c.project, experiments.c.name)
_STARTED = func.coalesce(runs.c.started_at, tracked_runs.c.start_ms / 1000.0)
_ENDED = func.coalesce(runs.c.ended_at, tracked_runs.c.end_ms / 1000.0)
_SUBMITTED = func.coalesce(runs.c.submitted_at, tracked_runs.c.start_ms / 1000.0)

_TEXTS: Mapping[str, ColumnElement[Any]] = {
    "id": tracked_runs.c.id,
    "name": tracked_runs.c.name,
    "state": _STATE,
    "project": _PROJECT,
    "user": tracked_runs.c.user,
}
_TIMES: Mapping[str, ColumnElement[Any]] = {"submitted": _SUBMITTED, "started": _STARTED, "ended": _ENDED}
_NUMBERS: Mapping[str, ColumnElement[Any]] = {
    "cost": runs.c.cost_usd,
    "gpu_hours": runs.c.gpu_hours,
    "cpu_hours": runs.c.cpu_hours,
    "attempts": runs.c.attempt_count,
    "duration": _ENDED - _STARTED,
}
_OWN = {**_TEXTS, **_TIMES, **_NUMBERS}
_TAGS = {"group": GROUP, "note": NOTE}  # tags that have a plain name
_HELD = {"parameter": run_params, "tag": run_tags}
_KINDS = ("metrics", "params", "tags", "datasets")


def search(
    tx: Connection,
    *,
    where: str | None,
    project: str | None = None,
    order: Sequence[str],
    cursor: str | None,
    limit: int,
    now: float,
) -> FoundPage:
    """The newest first, unless `order` says otherwise. Raises InvalidInput."""
    offset = offset_of(cursor)
    query = _query(where, order, dialect=tx.dialect.name, now=now)
    if project is not None:
        query = query.where(_TEXTS["project"] == project)
    rows = tx.execute(query.offset(offset).limit(limit + 1)).all()
    ids = [row.id for row in rows[:limit]]
    params, tags, metrics = (
        _load_held(tx, columns, ids)
        for columns in (
            (run_params.c.run_id, run_params.c.key, run_params.c.value),
            (run_tags.c.run_id, run_tags.c.key, run_tags.c.value),
            (summaries.c.run_id, summaries.c.name, summaries.c.last),
        )
    )
    found = [_found(row, params[row.id], metrics[row.id], tags[row.id]) for row in rows[:limit]]
    return FoundPage(runs=found, next_cursor=page_token(offset + limit) if len(rows) > limit else None)


def check_search(tx: Connection, where: str | None, order: Sequence[str], *, now: float) -> None:
    """Raises InvalidInput if `search` would."""
    _query(where, order, dialect=tx.dialect.name, now=now)


def _load_held(tx: Connection, columns: Sequence[ColumnElement[Any]], ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By run what it has of params, tags or metrics."""
    found: dict[str, dict[str, Any]] = {id: {} for id in ids}
    for some in in_parts(ids):
        for run_id, key, value in tx.execute(select(*columns).where(columns[0].in_(some))).all():
            found[run_id][key] = value
    return found


def _query(where: str | None, order: Sequence[str], *, dialect: Dialect, now: float) -> Select[Any]:
    conditions = [_condition(clause, dialect, now) for clause in parse_filter(where)]
    joined: Any = tracked_runs.outerjoin(runs, runs.c.id == tracked_runs.c.id).outerjoin(
        experiments, experiments.c.id == tracked_runs.c.experiment_id
    )
    by: list[ColumnElement[Any]] = []
    for number, text in enumerate(order):
        name, ascending = parse_order(text)
        joined, value = _ordering(joined, name, number)
        by += [case((value.is_(None), 1), else_=0), value.asc() if ascending else value.desc()]
    columns = (
        tracked_runs.c.id,
        tracked_runs.c.name,
        tracked_runs.c.user,
        _STATE.label("state"),
        _PROJECT.label("project"),
        _SUBMITTED.label("submitted_at"),
        _STARTED.label("started_at"),
        _ENDED.label("ended_at"),
        runs.c.attempt_count,
        runs.c.cost_usd,
        runs.c.gpu_hours,
        runs.c.cpu_hours,
    )
    active = tracked_runs.c.stage == "active"
    return (
        select(*columns)
        .select_from(joined)
        .where(active, *conditions)
        .order_by(*by, _SUBMITTED.desc(), tracked_runs.c.id)
    )


def _condition(clause: Clause, dialect: Dialect, now: float) -> ColumnElement[bool]:
    name = _meant(clause.name)
    clause = replace(clause, name=name)
    if name.kind is not None and KINDS.get(name.kind) not in (None, "attribute"):
        return condition_of(clause, dialect)
    key = _own_name(name)
    if key in _TIMES:
        check_op(clause, NUMERIC)
        return compare(_TIMES[key], clause.op, _moment(clause, key, now), dialect)
    if key in _NUMBERS:
        number = clause.number(key)
        check_op(clause, NUMERIC)
        return compare(_NUMBERS[key], clause.op, number, dialect)
    check_op(clause, (*TEXTUAL, *MEMBERSHIP))
    value = clause.items() if clause.has_list else clause.words(key)
    return compare(_TEXTS[key], clause.op, value, dialect)


def _meant(name: Name) -> Name:
    """Plain names that stand for tags."""
    return Name(kind="tags", key=_TAGS[name.key]) if name.kind is None and name.key in _TAGS else name


def _own_name(name: Name) -> str:
    if name.kind is not None and KINDS.get(name.kind) != "attribute":
        raise InvalidInput(unknown("kind", name.kind, _KINDS), hint="write metrics.loss, params.lr, tags.team or state")
    if name.key not in _OWN:
        raise InvalidInput(
            unknown("name", name.key, [*_OWN, *_TAGS]), hint="metrics.NAME, params.NAME and tags.NAME go too"
        )
    return name.key


def _moment(clause: Clause, key: str, now: float) -> float:
    """Seconds since the epoch, a date, or how long ago."""
    if clause.value is not None and clause.value.kind == "number":
        return float(clause.number(key))
    text = clause.words(key)
    try:
        if "-" in text:
            at = datetime.fromisoformat(text)
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        return now - parse_duration(text)
    except (ValueError, InvalidInput):
        raise InvalidInput(
            f"{text!r} is no time", hint=f"write {key} > '7d' (ago), '2026-11-15' or '2026-11-15T14:30'"
        ) from None


def _ordering(joined: Any, name: Name, number: int) -> tuple[Any, ColumnElement[Any]]:
    name = _meant(name)
    kind = KINDS.get(name.kind) if name.kind is not None else "attribute"
    if kind == "metric":
        held = summaries.alias(f"by_{number}")
        joined = joined.outerjoin(held, and_(held.c.run_id == tracked_runs.c.id, held.c.name == name.key))
        return joined, held.c.last
    if kind in _HELD:
        of = _HELD[kind].alias(f"by_{number}")
        return joined.outerjoin(of, and_(of.c.run_id == tracked_runs.c.id, of.c.key == name.key)), of.c.value
    return joined, _OWN[_own_name(name)]


def _found(
    row: Any, params: Mapping[str, str], metrics: Mapping[str, float | None], tags: Mapping[str, str]
) -> FoundRun:
    return FoundRun(
        id=row.id,
        name=row.name,
        state=row.state,
        project=row.project or "",
        user=row.user or None,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        attempts=row.attempt_count,
        cost_usd=row.cost_usd,
        gpu_hours=row.gpu_hours,
        cpu_hours=row.cpu_hours,
        params=dict(params),
        metrics={name: _plain(value) for name, value in sorted(metrics.items())},
        note=tags.get(NOTE),
        tags={key: value for key, value in tags.items() if not key.startswith("mlflow.")},
    )


def _plain(value: float | None) -> float | str:
    """JSON has neither NaN, which null stands for in the table, nor infinities."""
    return "nan" if value is None else value if math.isfinite(value) else str(value)
