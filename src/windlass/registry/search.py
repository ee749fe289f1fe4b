"""Searches as SQL. Each tag that is asked for is looked up by the key of its table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, and_, exists, not_, select

from windlass.experiments.matching import compare
from windlass.registry.filters import Clause, Order, wants_prompts
from windlass.registry.store import load_models, with_tags
from windlass.registry.tables import model_version_tags, model_versions, registered_model_tags, registered_models
from windlass.registry.types import PROMPT_TAG, ModelVersion, RegisteredModel, Stage

_COLUMNS = {"source_path": "source", "version_number": "version"}


def search_models(
    tx: Connection, clauses: Sequence[Clause], orders: Sequence[Order], *, most: int, offset: int
) -> tuple[list[RegisteredModel], bool]:
    """One page, and whether there are more."""
    tags = registered_model_tags
    query = select(registered_models.c.name).where(
        *_conditions(tx, registered_models, clauses),
        *_tag_conditions(tx, tags, tags.c.name == registered_models.c.name, clauses),
    )
    names = list(tx.execute(_page(query, registered_models, orders, ["name"], most=most, offset=offset)).scalars())
    return load_models(tx, names[:most]), len(names) > most


def search_versions(
    tx: Connection, clauses: Sequence[Clause], orders: Sequence[Order], *, most: int, offset: int
) -> tuple[list[ModelVersion], bool]:
    tags, c = model_version_tags, model_versions.c
    same = and_(tags.c.name == c.name, tags.c.version == c.version)
    query = select(model_versions).where(
        c.stage != Stage.DELETED,
        *_conditions(tx, model_versions, clauses),
        *_tag_conditions(tx, tags, same, clauses),
    )
    page = _page(query, model_versions, orders, ["name", "-version"], most=most, offset=offset)
    rows = tx.execute(page).all()
    return with_tags(tx, rows[:most]), len(rows) > most


def _conditions(tx: Connection, table: Table, clauses: Sequence[Clause]) -> list[ColumnElement[bool]]:
    return [
        _compare(tx, table.c[_COLUMNS.get(clause.key, clause.key)], clause) for clause in clauses if not clause.is_tag
    ]


def _tag_conditions(
    tx: Connection, tags: Table, same: ColumnElement[bool], clauses: Sequence[Clause]
) -> list[ColumnElement[bool]]:
    """A tag that is missing is neither equal nor unequal to anything."""
    by_key: dict[str, list[Clause]] = defaultdict(list)
    for clause in clauses:
        if clause.is_tag:
            by_key[clause.key].append(clause)
    conditions: list[ColumnElement[bool]] = []
    if not wants_prompts(clauses):
        by_key.pop(PROMPT_TAG, None)
        # One version that is marked makes prompts of all of that name.
        table = registered_models if tags is registered_model_tags else model_versions
        marked = and_(tags.c.name == table.c.name, tags.c.key == PROMPT_TAG, tags.c.value == "true")
        conditions.append(not_(exists().where(marked)))
    for key, some in by_key.items():
        matches = [_compare(tx, tags.c.value, clause) for clause in some]
        conditions.append(exists().where(same, tags.c.key == key, *matches))
    return conditions


def _compare(tx: Connection, column: Column[Any], clause: Clause) -> ColumnElement[bool]:
    return compare(column, clause.comparator, clause.value, tx.dialect.name)


def _page(
    query: Select[Any], table: Table, orders: Sequence[Order], last: Sequence[str], *, most: int, offset: int
) -> Select[Any]:
    """`last` decides between those that are alike; with a `-` downwards. One more than asked for: is there another?"""
    by = [table.c[order.key].asc() if order.ascending else table.c[order.key].desc() for order in orders]
    named = {order.key for order in orders}
    for key in last:
        column = table.c[key.removeprefix("-")]
        if column.name not in named:
            by.append(column.desc() if key.startswith("-") else column.asc())
    return query.order_by(*by).limit(most + 1).offset(offset)
