"""Searching runs: the names that filters and orders may use, and the query they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, case, exists, or_, select

from windlass.core.errors import InvalidInput
from windlass.experiments.language import (
    MEMBERSHIP,
    NUMERIC,
    PRESENCE,
    TEXTUAL,
    Clause,
    Name,
    check_op,
    check_orders,
    parse_filter,
    parse_order,
)
from windlass.experiments.matching import Dialect, compare
from windlass.experiments.tables import input_datasets, input_tags, run_inputs, run_params, run_tags, tracked_runs
from windlass.experiments.types import DATASET_CONTEXT, RUN_NAME, View
from windlass.tracking.tables import summaries

KINDS: Mapping[str, str] = {
    **dict.fromkeys(("metric", "metrics"), "metric"),
    **dict.fromkeys(("parameter", "parameters", "param", "params"), "parameter"),
    **dict.fromkeys(("tag", "tags"), "tag"),
    **dict.fromkeys(("attribute", "attributes", "attr", "run"), "attribute"),
    **dict.fromkeys(("dataset", "datasets"), "dataset"),
}
_IDENTIFIERS = ["metric", "parameter", "tag", "attribute", "dataset"]
_COLUMNS: Mapping[str, ColumnElement[Any]] = {
    "run_id": tracked_runs.c.id,
    "run_name": tracked_runs.c.name,
    "user_id": tracked_runs.c.user,
    "status": tracked_runs.c.status,
    "start_time": tracked_runs.c.start_ms,
    "end_time": tracked_runs.c.end_ms,
    "artifact_uri": tracked_runs.c.artifact_uri,
}
_NUMBERS = ("start_time", "end_time")
_ALIASES = {
    **dict.fromkeys(("created", "Created"), "start_time"),
    **dict.fromkeys(("run name", "Run name", "Run Name"), "run_name"),
}
_DATASET_COLUMNS = {"name": input_datasets.c.name, "digest": input_datasets.c.digest}
_DATASET_KEYS = ("context", "digest", "name")
_HELD: Mapping[str, Table] = {"parameter": run_params, "tag": run_tags}


def search_query(
    *,
    experiments: Sequence[int],
    filter: str | None,
    order: Sequence[str],
    view: View,
    dialect: Dialect,
    before: float | None = None,
) -> Select[Any]:
    """The rows of `tracked_runs` that match, in their order. `before`: only those with a value of the metric that they
    are ordered by first (see `leading_metric`) which comes before this one. Raises InvalidInput."""
    wanted = [condition_of(clause, dialect) for clause in parse_filter(filter)]
    query = select(tracked_runs).where(
        tracked_runs.c.experiment_id.in_(experiments), tracked_runs.c.stage.in_(view.stages), *wanted
    )
    return _ordered(query, order, before)


def leading_metric(order: Sequence[str]) -> tuple[str, bool] | None:
    """The metric that runs are ordered by first, and whether it ascends. Raises InvalidInput."""
    if not order:
        return None
    name, ascending = parse_order(order[0])
    return (name.key, ascending) if _kind_of(name) == "metric" else None


def condition_of(clause: Clause, dialect: Dialect) -> ColumnElement[bool]:
    kind, key = _kind_of(clause.name), clause.name.key
    if clause.op in PRESENCE and kind not in _HELD:
        raise InvalidInput(f"IS NULL / IS NOT NULL is only supported for tags and params, not for '{kind}' '{key}'")
    if kind == "metric":
        return _metric(clause, key, dialect)
    if kind in _HELD:
        return _held(clause, kind, dialect)
    if kind == "dataset":
        return _dataset(clause, key, dialect)
    return _attribute(clause, dialect)


def _kind_of(name: Name) -> str:
    kind = "attribute" if name.kind is None else KINDS.get(name.kind)
    if kind is None:
        raise InvalidInput(f"Invalid entity type '{name.kind}'. Valid values are {_IDENTIFIERS}")
    if kind == "attribute" and _ALIASES.get(name.key, name.key) not in _COLUMNS:
        valid = sorted([*_COLUMNS, *_ALIASES])
        raise InvalidInput(f"Invalid attribute key '{name.key}' specified. Valid keys are '{valid}'")
    if kind == "dataset" and name.key not in _DATASET_KEYS:
        raise InvalidInput(f"Invalid dataset key '{name.key}' specified. Valid keys are '{list(_DATASET_KEYS)}'")
    return kind


def _metric(clause: Clause, key: str, dialect: Dialect) -> ColumnElement[bool]:
    """Nothing but `!=` is true of NaN, which null stands for."""
    value = float(clause.number("metric"))
    check_op(clause, NUMERIC)
    matches = compare(summaries.c.last, clause.op, value, dialect)
    if clause.op == "!=":
        matches = or_(matches, summaries.c.last.is_(None))
    return exists().where(summaries.c.run_id == tracked_runs.c.id, summaries.c.name == key, matches)


def _held(clause: Clause, kind: str, dialect: Dialect) -> ColumnElement[bool]:
    table = _HELD[kind]
    there = and_(table.c.run_id == tracked_runs.c.id, table.c.key == clause.name.key)
    if clause.op in PRESENCE:
        found = exists().where(there)
        return found if clause.op == "IS NOT NULL" else ~found
    value = clause.words(f"{kind} (e.g. 'my-value')")
    check_op(clause, (*TEXTUAL, *PRESENCE))
    return exists().where(there, compare(table.c.value, clause.op, value, dialect))


def _dataset(clause: Clause, key: str, dialect: Dialect) -> ColumnElement[bool]:
    value = clause.items() if clause.has_list else clause.words("dataset attributes")
    check_op(clause, (*TEXTUAL, *MEMBERSHIP))
    of_run = run_inputs.c.run_id == tracked_runs.c.id
    if key == "context":
        same = and_(input_tags.c.run_id == run_inputs.c.run_id, input_tags.c.dataset_id == run_inputs.c.dataset_id)
        matches = compare(input_tags.c.value, clause.op, value, dialect)
        return exists().where(of_run, same, input_tags.c.key == DATASET_CONTEXT, matches)
    matches = compare(_DATASET_COLUMNS[key], clause.op, value, dialect)
    return exists().where(of_run, run_inputs.c.dataset_id == input_datasets.c.id, matches)


def _attribute(clause: Clause, dialect: Dialect) -> ColumnElement[bool]:
    key = _ALIASES.get(clause.name.key, clause.name.key)
    if key in _NUMBERS:
        number = clause.number(f"numeric attribute: {clause.name.key}")
        check_op(clause, NUMERIC)
        return compare(_COLUMNS[key], clause.op, number, dialect)
    if clause.has_list:
        if key != "run_id":
            raise InvalidInput("Only ['run_id'] attributes support comparison with a list of quoted string values.")
        return compare(_COLUMNS[key], clause.op, clause.items(), dialect)
    value = clause.words("attributes")
    check_op(clause, (*TEXTUAL, *MEMBERSHIP))
    if key == "run_name":
        # What the tag says counts, as with MLflow: it is what clients set and delete.
        named = and_(run_tags.c.run_id == tracked_runs.c.id, run_tags.c.key == RUN_NAME)
        return exists().where(named, compare(run_tags.c.value, clause.op, value, dialect))
    return compare(_COLUMNS[key], clause.op, value, dialect)


def _ordered(query: Select[Any], order: Sequence[str], before: float | None) -> Select[Any]:
    """Runs without the value come last either way, after those where it is NaN; among equals the newest comes first."""
    check_orders(order)
    seen: set[tuple[str, str]] = set()
    joined: Any = tracked_runs
    by: list[ColumnElement[Any]] = []
    for number, text in enumerate(order):
        name, ascending = parse_order(text)
        kind, key = _kind_of(name), _ALIASES.get(name.key, name.key)
        if kind == "dataset":
            raise InvalidInput(f"Invalid identifier type '{kind}'")
        if (kind, key) in seen:
            raise InvalidInput(f"`order_by` contains duplicate fields: {list(order)}")
        seen.add((kind, key))
        if kind == "attribute":
            value = _COLUMNS[key]
            last: ColumnElement[Any] = case((value.is_(None), 1), else_=0)
        elif kind == "metric":
            held = summaries.alias(f"by_{number}")
            mine = and_(held.c.run_id == tracked_runs.c.id, held.c.name == key)
            value = held.c.last
            if before is not None and number == 0:
                # Without the case, so that the index of values is walked in its order, as far as it has to be.
                joined = joined.join(held, mine)
                query = query.where(value < before if ascending else value > before)
                by.append(value.asc() if ascending else value.desc())
                continue
            joined = joined.outerjoin(held, mine)
            last = case((held.c.run_id.is_(None), 2), (value.is_(None), 1), else_=0)
        else:
            held = _HELD[kind].alias(f"by_{number}")
            joined = joined.outerjoin(held, and_(held.c.run_id == tracked_runs.c.id, held.c.key == key))
            value = held.c.value
            last = case((value.is_(None), 1), else_=0)
        by += [last, value.asc() if ascending else value.desc()]
    if ("attribute", "start_time") not in seen:
        by.append(tracked_runs.c.start_ms.desc())
    return query.select_from(joined).order_by(*by, tracked_runs.c.id)
