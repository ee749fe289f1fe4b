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
from windlass.runs.belonging import project_of_run, same_project, with_projects
from windlass.runs.bulk import in_parts
from windlass.runs.searchwords import explain_unreadable, load_remarks
from windlass.runs.states import STATE_OF_STATUS
from windlass.runs.tables import runs
from windlass.runs.types import RunState
from windlass.tracking.tables import summaries
from windlass.wire.search import LONG, FoundPage, FoundRun
from windlass.wire.spec import GROUP

_STATE = func.coalesce(
    runs.c.state, case(STATE_OF_STATUS, value=tracked_runs.c.status, else_=func.lower(tracked_runs.c.status))
)
_STARTED = func.coalesce(runs.c.started_at, tracked_runs.c.start_ms / 1000.0)
_ENDED = func.coalesce(runs.c.ended_at, tracked_runs.c.end_ms / 1000.0)
_SUBMITTED = func.coalesce(runs.c.submitted_at, tracked_runs.c.start_ms / 1000.0)

_TEXTS: Mapping[str, ColumnElement[Any]] = {
    "id": tracked_runs.c.id,
    "name": tracked_runs.c.name,
    "state": _STATE,
    "project": project_of_run,
    "experiment": experiments.c.name,
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
_EXAMPLE = "write comparisons joined by `and`: metrics.loss < 0.5 and params.lr = '0.1' and state = 'succeeded'"
_KINDS = ("metrics", "params", "tags", "datasets")
_JOINED = with_projects(tracked_runs)
_COLUMNS = (
    tracked_runs.c.id,
    tracked_runs.c.name,
    tracked_runs.c.user,
    _STATE.label("state"),
    project_of_run.label("project"),
    experiments.c.name.label("experiment"),
    _SUBMITTED.label("submitted_at"),
    _STARTED.label("started_at"),
    _ENDED.label("ended_at"),
    runs.c.attempt_count,
    runs.c.cost_usd,
    runs.c.gpu_hours,
    runs.c.cpu_hours,
)


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
    clauses, orders = _read(where, order)
    query = _query(where, clauses, orders, dialect=tx.dialect.name, now=now)
    if project is not None:
        query = query.where(_TEXTS["project"] == same_project(project))
    rows = tx.execute(query.offset(offset).limit(limit + 1)).all()
    by = [name for name, _ in orders]
    remarks = [] if offset else load_remarks(tx, clauses, by, project=project, is_empty=not rows)
    return FoundPage(
        runs=_filled(tx, rows[:limit]),
        next_cursor=page_token(offset + limit) if len(rows) > limit else None,
        named=_columns([*(clause.name for clause in clauses), *by]),
        remarks=remarks,
    )


def find_one(tx: Connection, run_id: str) -> FoundRun:
    """Of a run that is there, also one that is deleted."""
    rows = tx.execute(select(*_COLUMNS).select_from(_JOINED).where(tracked_runs.c.id == run_id)).all()
    return _filled(tx, rows)[0]


def _filled(tx: Connection, rows: Sequence[Any]) -> list[FoundRun]:
    """With what is kept of them elsewhere."""
    ids = [row.id for row in rows]
    params, tags, metrics = (
        _load_held(tx, columns, ids)
        for columns in (
            (run_params.c.run_id, run_params.c.key, run_params.c.value),
            (run_tags.c.run_id, run_tags.c.key, run_tags.c.value),
            (summaries.c.run_id, summaries.c.name, summaries.c.last),
        )
    )
    return [_found(row, params[row.id], metrics[row.id], tags[row.id]) for row in rows]


def check_search(tx: Connection, where: str | None, order: Sequence[str], *, now: float) -> None:
    """Raises InvalidInput if `search` would."""
    _query(where, *_read(where, order), dialect=tx.dialect.name, now=now)


def _read(where: str | None, order: Sequence[str]) -> tuple[list[Clause], list[tuple[Name, bool]]]:
    return read_filter(where), [parse_order(text) for text in order]


def read_filter(where: str | None) -> list[Clause]:
    """Raises InvalidInput, in our words for the usual mistakes."""
    try:
        return parse_filter(where)
    except InvalidInput as error:
        raise explain_unreadable(where) or InvalidInput(error.message, hint=_EXAMPLE) from None


def _columns(names: Sequence[Name]) -> list[str]:
    """As tables call them."""
    kinds = {"metric": "metrics", "parameter": "params", "tag": "tags", "attribute": None}
    found: dict[str, None] = {}
    for name in map(_meant, names):
        kind = "attribute" if name.kind is None else KINDS.get(name.kind)
        if kind in kinds:
            found[name.key if kinds[kind] is None else f"{kinds[kind]}.{name.key}"] = None
    return list(found)


def _load_held(tx: Connection, columns: Sequence[ColumnElement[Any]], ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By run what it has of params, tags or metrics."""
    found: dict[str, dict[str, Any]] = {id: {} for id in ids}
    for some in in_parts(ids):
        for run_id, key, value in tx.execute(select(*columns).where(columns[0].in_(some))).all():
            found[run_id][key] = value
    return found


def _query(
    where: str | None,
    clauses: Sequence[Clause],
    orders: Sequence[tuple[Name, bool]],
    *,
    dialect: Dialect,
    now: float,
) -> Select[Any]:
    try:
        conditions = [_condition(clause, dialect, now) for clause in clauses]
    except InvalidInput as error:
        raise explain_unreadable(where) or error from None
    joined = _JOINED
    by: list[ColumnElement[Any]] = []
    for number, (name, ascending) in enumerate(orders):
        joined, value, lacking = _ordering(joined, name, number)
        by += [case((lacking, 2), (value.is_(None), 1), else_=0), value.asc() if ascending else value.desc()]
    active = tracked_runs.c.stage == "active"
    return (
        select(*_COLUMNS)
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
    if clause.op not in ("LIKE", "ILIKE"):
        value = tuple(_checked(key, one) for one in value) if isinstance(value, tuple) else _checked(key, value)
    return compare(_TEXTS[key], clause.op, value, dialect)


def _checked(key: str, text: str) -> str:
    if key == "state" and text not in set(RunState):
        raise InvalidInput(unknown("state", text, list(RunState)))
    return same_project(text) if key == "project" else text


def _meant(name: Name) -> Name:
    """Plain names that stand for tags, and long ones that tables have."""
    if name.kind is None and name.key in _TAGS:
        return Name(kind="tags", key=_TAGS[name.key])
    return Name(kind=name.kind, key=LONG[name.key]) if name.key in LONG and _is_plain(name) else name


def _is_plain(name: Name) -> bool:
    return name.kind is None or KINDS.get(name.kind) == "attribute"


def _own_name(name: Name) -> str:
    if name.kind is not None and not _is_plain(name):
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


def _ordering(joined: Any, name: Name, number: int) -> tuple[Any, ColumnElement[Any], ColumnElement[bool]]:
    """What to join, the value, and where there is none: a value that is null may be NaN."""
    name = _meant(name)
    kind = KINDS.get(name.kind) if name.kind is not None else "attribute"
    if kind == "metric":
        held = summaries.alias(f"by_{number}")
        joined = joined.outerjoin(held, and_(held.c.run_id == tracked_runs.c.id, held.c.name == name.key))
        return joined, held.c.last, held.c.run_id.is_(None)
    if kind in _HELD:
        of = _HELD[kind].alias(f"by_{number}")
        joined = joined.outerjoin(of, and_(of.c.run_id == tracked_runs.c.id, of.c.key == name.key))
        return joined, of.c.value, of.c.run_id.is_(None)
    own = _OWN[_own_name(name)]
    return joined, own, own.is_(None)


def _found(
    row: Any, params: Mapping[str, str], metrics: Mapping[str, float | None], tags: Mapping[str, str]
) -> FoundRun:
    return FoundRun(
        id=row.id,
        name=row.name,
        state=row.state,
        project=row.project or "",
        experiment=row.experiment,
        user=row.user or None,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        attempts=row.attempt_count,
        cost_usd=row.cost_usd,
        gpu_hours=row.gpu_hours,
        cpu_hours=row.cpu_hours,
        params=dict(params),
        metrics={name: math.nan if value is None else value for name, value in sorted(metrics.items())},
        note=tags.get(NOTE),
        tags={key: value for key, value in tags.items() if not key.startswith("mlflow.")},
    )
