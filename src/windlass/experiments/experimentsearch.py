"""Searching experiments: the names that filters and orders may use, and the query they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, exists, select

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
from windlass.experiments.rules import experiment_number
from windlass.experiments.tables import experiment_tags, experiments
from windlass.experiments.types import View

_KINDS = ("attribute", "attributes", "tag", "tags")
_COLUMNS = {
    "creation_time": experiments.c.created_ms,
    "experiment_id": experiments.c.id,
    "last_update_time": experiments.c.updated_ms,
    "name": experiments.c.name,
}
_NUMBERS = ("creation_time", "last_update_time")
_USUAL_ORDER = ("creation_time DESC", "experiment_id ASC")


def search_query(*, filter: str | None, order: Sequence[str], view: View, dialect: Dialect) -> Select[Any]:
    """The rows of `experiments` that match, in their order. Raises InvalidInput."""
    wanted = [_condition_of(clause, dialect) for clause in parse_filter(filter)]
    query = select(experiments).where(experiments.c.stage.in_(view.stages), *wanted)
    return query.order_by(*_order_of(order))


def _kind_of(name: Name) -> str:
    if name.kind is not None and name.kind not in _KINDS:
        raise InvalidInput(f"Invalid entity type '{name.kind}'. Valid entity types are {_KINDS}")
    if name.kind in ("tag", "tags"):
        return "tag"
    if name.key not in _COLUMNS:
        raise InvalidInput(f"Invalid attribute key '{name.key}' specified. Valid keys are '{sorted(_COLUMNS)}'")
    return "attribute"


def _condition_of(clause: Clause, dialect: Dialect) -> ColumnElement[bool]:
    kind, key = _kind_of(clause.name), clause.name.key
    if kind == "tag":
        return _tag(clause, key, dialect)
    if clause.op in PRESENCE:
        raise InvalidInput(f"IS NULL / IS NOT NULL is only supported for tags, not for attribute '{key}'")
    if key in _NUMBERS:
        number = clause.number(f"numeric attribute: {key}")
        if clause.op not in NUMERIC:
            raise InvalidInput(f"Invalid comparator for numeric attribute: {clause.op}")
        if isinstance(number, float):
            raise InvalidInput(f"Invalid value for numeric attribute '{key}': {str(number)!r}")
        return compare(_COLUMNS[key], clause.op, number, dialect)
    if key == "experiment_id":
        return _identified(clause, dialect)
    if clause.has_list:
        raise InvalidInput("Only ['experiment_id'] attributes support comparison with a list of quoted string values.")
    value = clause.words("attributes")
    if clause.op not in TEXTUAL:
        raise InvalidInput(f"Invalid comparator for string attribute: {clause.op}")
    return compare(_COLUMNS[key], clause.op, value, dialect)


def _identified(clause: Clause, dialect: Dialect) -> ColumnElement[bool]:
    given = clause.items() if clause.has_list else clause.words("attributes")
    if clause.op not in ("=", "!=", *MEMBERSHIP):
        raise InvalidInput(f"Invalid comparator for experiment_id: {clause.op}")
    value = experiment_number(given) if isinstance(given, str) else [experiment_number(one) for one in given]
    return compare(experiments.c.id, clause.op, value, dialect)


def _tag(clause: Clause, key: str, dialect: Dialect) -> ColumnElement[bool]:
    there = and_(experiment_tags.c.experiment_id == experiments.c.id, experiment_tags.c.key == key)
    if clause.op in PRESENCE:
        found = exists().where(there)
        return found if clause.op == "IS NOT NULL" else ~found
    value = clause.words("tag (e.g. 'my-value')")
    check_op(clause, TEXTUAL)
    return exists().where(there, compare(experiment_tags.c.value, clause.op, value, dialect))


def _order_of(order: Sequence[str]) -> list[ColumnElement[Any]]:
    check_orders(order)
    by: list[ColumnElement[Any]] = []
    has_id = False
    for text in order or _USUAL_ORDER:
        name, ascending = parse_order(text)
        if (kind := _kind_of(name)) != "attribute":
            raise InvalidInput(f"Invalid order_by entity: {kind}")
        has_id = has_id or name.key == "experiment_id"
        by.append(_COLUMNS[name.key].asc() if ascending else _COLUMNS[name.key].desc())
    return by if has_id else [*by, experiments.c.id.desc()]
