"""Inserting rows that somebody else may insert at the same moment: one of each is enough, or the last one counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, Table

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert


def insert_missing(tx: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Those whose key is there already are left as they are. Give several in the order of their keys: writers that
    meet in another order would wait for each other for ever."""
    if rows:
        tx.execute(_skipping(tx.dialect.name, table), [dict(row) for row in rows])


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
    if rows:
        tx.execute(_replacing(tx.dialect.name, table, tuple(rows[0])), [dict(row) for row in rows])


def insert_or_merge(
    tx: Connection, table: Table, rows: Sequence[Mapping[str, Any]], merge: Callable[[Any], Mapping[str, Any]]
) -> None:
    """What is there already under a row's key becomes what `merge` says, given the columns of the new row. Give several
    in the order of their keys, as above. `merge` is a function of a module: what it says is kept."""
    if rows:
        tx.execute(_merging(tx.dialect.name, table, merge), [dict(row) for row in rows])


# Putting a statement together takes longer than a small one takes to run.


@lru_cache(maxsize=256)
def _skipping(dialect: str, table: Table) -> Insert:
    return _insert_on(dialect, table).on_conflict_do_nothing()


@lru_cache(maxsize=256)
def _replacing(dialect: str, table: Table, columns: tuple[str, ...]) -> Insert:
    key = [column.name for column in table.primary_key]
    statement = _insert_on(dialect, table)
    changes = {name: statement.excluded[name] for name in columns if name not in key}
    return statement.on_conflict_do_update(index_elements=key, set_=changes)


@lru_cache(maxsize=256)
def _merging(dialect: str, table: Table, merge: Callable[[Any], Mapping[str, Any]]) -> Insert:
    key = [column.name for column in table.primary_key]
    statement = _insert_on(dialect, table)
    return statement.on_conflict_do_update(index_elements=key, set_=dict(merge(statement.excluded)))


def _insert(tx: Connection, table: Table) -> Insert:
    return _insert_on(tx.dialect.name, table)


def _insert_on(dialect: str, table: Table) -> Insert:
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert

        return insert(table)
    from sqlalchemy.dialects.sqlite import insert as insert_into_sqlite

    return cast("Insert", insert_into_sqlite(table))  # what is used of it is the same
