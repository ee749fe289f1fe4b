"""Inserting rows that somebody else may insert at the same moment: one of each is enough, or the last one counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, Table

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert


def insert_missing(tx: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Those whose key is there already are left as they are. Give several in the order of their keys: writers that
    meet in another order would wait for each other for ever."""
    if rows:
        tx.execute(_insert(tx, table).on_conflict_do_nothing(), [dict(row) for row in rows])


def insert_new(tx: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Whether it was new; one whose key is there already is left as it is."""
    # Not by the count of rows: where the database numbers them, the driver does not tell it.
    statement = _insert(tx, table).values(**row).on_conflict_do_nothing()
    return tx.execute(statement.returning(*table.primary_key.columns)).first() is not None


def insert_or_replace(tx: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """What is there already under its key is replaced: of several writers the last one counts."""
    key = [column.name for column in table.primary_key]
    changes = {name: value for name, value in row.items() if name not in key}
    tx.execute(_insert(tx, table).values(**row).on_conflict_do_update(index_elements=key, set_=changes))


def insert_or_replace_all(tx: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """As `insert_or_replace`, for rows that all have the same columns; in the order of their keys."""
    if not rows:
        return
    key = [column.name for column in table.primary_key]
    statement = _insert(tx, table)
    changes = {name: statement.excluded[name] for name in rows[0] if name not in key}
    statement = statement.on_conflict_do_update(index_elements=key, set_=changes)
    tx.execute(statement, [dict(row) for row in rows])


def insert_or_merge(
    tx: Connection, table: Table, rows: Sequence[Mapping[str, Any]], merge: Callable[[Any], Mapping[str, Any]]
) -> None:
    """What is there already under a row's key becomes what `merge` says, given the columns of the new row. Give several
    in the order of their keys, as above."""
    if rows:
        key = [column.name for column in table.primary_key]
        statement = _insert(tx, table)
        changes = dict(merge(statement.excluded))
        tx.execute(statement.on_conflict_do_update(index_elements=key, set_=changes), [dict(row) for row in rows])


def _insert(tx: Connection, table: Table) -> Insert:
    if tx.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert

        return insert(table)
    from sqlalchemy.dialects.sqlite import insert as insert_into_sqlite

    return cast("Insert", insert_into_sqlite(table))  # what is used of it is the same
