"""Inserting rows that somebody else may insert at the same moment: one of each is enough for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table


def insert_missing(tx: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Those whose key is there already are left as they are. Give several in the order of their keys: writers that
    meet in another order would wait for each other for ever."""
    if tx.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment]
    if rows:
        tx.execute(insert(table).on_conflict_do_nothing(), [dict(row) for row in rows])
