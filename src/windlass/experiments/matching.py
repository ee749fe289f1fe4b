"""Comparisons of a search as SQL, alike on both databases."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Float, Integer, Text, cast, type_coerce
from sqlalchemy.types import TypeEngine

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
    if isinstance(value, int | float) and not _fits(value, column.type):
        column, value = cast(column, Float(53)), float(value)
    found: ColumnElement[bool] = _PLAIN[op](column, value)
    return found


def _fits(value: float, kind: TypeEngine[Any]) -> bool:
    """PostgreSQL makes a value what its column is before it compares them: 1.5 would be 2, and 1e20 an error."""
    if not isinstance(kind, Integer):
        return True
    return isinstance(value, int) and (isinstance(kind, BigInteger) or -(2**31) <= value < 2**31)


def glob_of(pattern: str) -> str:
    """A pattern of LIKE as one of GLOB."""
    special = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return "".join(special.get(character, character) for character in pattern)
