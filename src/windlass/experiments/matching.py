"""Comparisons of a search as SQL, alike on both databases."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Text, type_coerce

Dialect = str  # sqlite or postgresql

_PLAIN: Mapping[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
}


def compare(column: ColumnElement[Any], op: str, value: Any, dialect: Dialect) -> ColumnElement[bool]:
    if op == "LIKE":
        # SQLite's LIKE takes upper and lower case for the same; its GLOB does not.
        if dialect == "sqlite":
            return type_coerce(column, Text).op("GLOB", is_comparison=True)(glob_of(value))
        return column.like(value)
    if op == "ILIKE":
        return column.ilike(value)
    if op == "IN":
        return column.in_(value)
    if op == "NOT IN":
        return column.not_in(value)
    found: ColumnElement[bool] = _PLAIN[op](column, value)
    return found


def glob_of(pattern: str) -> str:
    """A pattern of LIKE as one of GLOB."""
    special = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return "".join(special.get(character, character) for character in pattern)
