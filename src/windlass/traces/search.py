"""Conditions as SQL over the traces of some experiments."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, exists, func, not_, or_, select, true

from windlass.core.patterns import pattern_of
from windlass.experiments.matching import compare as compare_plain
from windlass.traces.conditions import Condition, Order, unquoted
from windlass.traces.store import assemble
from windlass.traces.tables import assessments, links, notes, spans, tags, traces
from windlass.traces.types import LINKED_PROMPTS, SOURCE_RUN, TRACE_SESSION, Trace

# Clocks of a trace and its spans may differ.
_SPAN_TOLERANCE_MS = 60_000

_COLUMNS: dict[str, ColumnElement[Any]] = {
    "timestamp_ms": traces.c.request_ms,
    "execution_time_ms": traces.c.duration_ms,
    "end_time_ms": traces.c.request_ms + func.coalesce(traces.c.duration_ms, 0),
    "experiment_id": traces.c.experiment_id,
    "status": traces.c.state,
    "request_id": traces.c.id,
    "client_request_id": traces.c.client_request_id,
}


def search_traces(
    tx: Connection,
    experiment_ids: Sequence[int],
    conditions: Sequence[Condition],
    orders: Sequence[Order],
    *,
    offset: int,
    limit: int,
) -> list[Trace]:
    query = select(traces).where(traces.c.experiment_id.in_(experiment_ids), *where(tx, conditions))
    rows = tx.execute(query.order_by(*_order(orders)).offset(offset).limit(limit)).all()
    return assemble(tx, rows)


def where(tx: Connection, conditions: Sequence[Condition]) -> list[ColumnElement[bool]]:
    """Conditions on spans hold for one and the same span."""
    if any(condition.comparator == "RLIKE" for condition in conditions):
        prepare_regexp(tx)
    dialect = tx.dialect.name
    of_spans = [_span(one, dialect) for one in conditions if one.entity == "span"]
    found = [_condition(one, dialect) for one in conditions if one.entity != "span"]
    if of_spans:
        early = [c.value for c in conditions if c.key == "timestamp_ms" and c.comparator in (">", ">=")]
        if early:
            of_spans.append(spans.c.start_ns >= (int(max(early)) - _SPAN_TOLERANCE_MS) * 1_000_000)
        found.append(exists().where(spans.c.trace_id == traces.c.id, *of_spans))
    return found


def prepare_regexp(tx: Connection) -> None:
    """SQLite knows the operator, and leaves what it means to whoever asks."""
    if tx.dialect.name == "sqlite":
        connection: Any = tx.connection.driver_connection
        connection.create_function("regexp", 2, _matches, deterministic=True)


def _matches(pattern: str, text: str | None) -> bool:
    return text is not None and pattern_of(pattern).is_in(text)


def compare(column: ColumnElement[Any], comparator: str, value: Any, dialect: str) -> ColumnElement[bool]:
    if comparator != "RLIKE":
        return compare_plain(column, comparator, value, dialect)
    pattern_of(value)  # raises InvalidInput here: within the database nobody could say what is wrong
    found: ColumnElement[bool] = column.op("~" if dialect == "postgresql" else "REGEXP", is_comparison=True)(value)
    return found


def _condition(one: Condition, dialect: str) -> ColumnElement[bool]:
    match one.entity:
        case "attribute":
            return compare(_COLUMNS[one.key], one.comparator, one.value, dialect)
        case "issue":
            return exists().where(
                assessments.c.trace_id == traces.c.id, assessments.c.kind == "issue", assessments.c.name == one.value
            )
        case "feedback" | "expectation":
            return _assessment(one, dialect)
    if one.key == LINKED_PROMPTS and one.entity == "tag":
        return linked("prompt", one.value)
    table = tags if one.entity == "tag" else notes
    there = (table.c.trace_id == traces.c.id, table.c.key == one.key)
    if one.comparator == "IS NULL":
        return not_(exists().where(*there))
    if one.comparator == "IS NOT NULL":
        return exists().where(*there)
    told = exists().where(*there, compare(table.c.value, one.comparator, one.value, dialect))
    if one.entity == "request_metadata" and one.key == SOURCE_RUN and one.comparator == "=":
        return or_(told, linked("run", one.value))
    return told


def linked(kind: str, target: str) -> ColumnElement[bool]:
    return exists().where(links.c.trace_id == traces.c.id, links.c.kind == kind, links.c.target == target)


def _span(one: Condition, dialect: str) -> ColumnElement[bool]:
    if not one.key.startswith("attributes."):
        return compare(spans.c[one.key], one.comparator, one.value, dialect)
    name = unquoted(one.key.removeprefix("attributes."))
    if one.comparator != "RLIKE":
        pattern = one.value if isinstance(one.value, tuple) else f'%"{name}"{one.value}%'
        return compare(spans.c.content, one.comparator, pattern, dialect)
    # Values are JSON texts within JSON: "model": "\"gpt-4\"".
    wanted: str = one.value
    before = '"\\\\"' if wanted.startswith("^") else '"\\\\".*'
    after = '\\\\"' if wanted.endswith("$") else ""
    pattern = f'"{re.escape(name)}": {before}{wanted.removeprefix("^").removesuffix("$")}{after}'
    return compare(spans.c.content, "RLIKE", pattern, dialect)


def _assessment(one: Condition, dialect: str) -> ColumnElement[bool]:
    """Of the trace itself, or of its session: an assessment of a session is kept with one of its traces, and holds for
    all of them."""
    named = [assessments.c.kind == one.entity, assessments.c.name == one.key, assessments.c.valid == true()]
    if one.comparator in (">", ">=", "<", "<="):
        named += [
            assessments.c.is_number == true(),
            compare(assessments.c.number, one.comparator, one.value, dialect),
        ]
    elif one.comparator in ("=", "!="):
        same = or_(assessments.c.value == one.value, assessments.c.value == json.dumps(one.value))
        named.append(same if one.comparator == "=" else not_(same))
    elif one.comparator not in ("IS NULL", "IS NOT NULL"):
        named.append(compare(assessments.c.value, one.comparator, one.value, dialect))
    assessed_note, own_note = notes.alias("assessed_note"), notes.alias("own_note")
    sessions = select(assessed_note.c.value).where(
        assessed_note.c.key == TRACE_SESSION,
        assessments.c.trace_id == assessed_note.c.trace_id,
        *named,
        assessments.c.metadata.contains(f'"{TRACE_SESSION}":', autoescape=True),
    )
    held = or_(
        exists().where(assessments.c.trace_id == traces.c.id, *named),
        exists().where(
            and_(own_note.c.trace_id == traces.c.id, own_note.c.key == TRACE_SESSION, own_note.c.value.in_(sessions))
        ),
    )
    return not_(held) if one.comparator == "IS NULL" else held


def _order(orders: Sequence[Order]) -> list[ColumnElement[Any]]:
    clauses: list[ColumnElement[Any]] = []
    for order in orders:
        column = _COLUMNS[order.key] if order.entity == "attribute" else _pair(order)
        clauses += [case((column.is_(None), 1), else_=0), column.asc() if order.ascending else column.desc()]
    taken = {order.key for order in orders if order.entity == "attribute"}
    if "timestamp_ms" not in taken:
        clauses.append(traces.c.request_ms.desc())
    if "request_id" not in taken:
        clauses.append(traces.c.id)
    return clauses


def _pair(order: Order) -> ColumnElement[Any]:
    table = tags if order.entity == "tag" else notes
    query = select(table.c.value).where(table.c.trace_id == traces.c.id, table.c.key == order.key)
    return query.scalar_subquery()
