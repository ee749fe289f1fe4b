"""Bringing a database to the schema of this version. Alembic is imported only when there is something to do: a server
that finds its schema current starts without it.

Servers of two versions work on one database while an upgrade goes round, so a migration only adds: what the version
before does not know has a default, and what it needs stays until the version after. A migration that cannot keep to
that names the oldest version that still can, in `schema_readers`.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, String, Table, func, inspect, select, text

from windlass.core.errors import Conflict
from windlass.db.database import Database
from windlass.db.metadata import metadata

HEAD = "0026"
schema_readers = Table("schema_readers", metadata, Column("oldest", String(32), primary_key=True))

_LOCK_KEY = 0x57494E44  # any number, the same for all servers


def migrate(db: Database) -> None:
    """Idempotent; servers that start together take turns. A newer schema that this version can still use is left as
    it is. Raises Conflict for one that it cannot."""
    current = current_revision(db)
    if current == HEAD:
        return
    if current is not None and current > HEAD:
        _check_readable(db, current)
        return
    with db.write() as connection:
        if not db.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        upgrade(connection, HEAD)


def upgrade(connection: Connection, revision: str) -> None:
    """Bring the tables to a given schema, as part of the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _check_readable(db: Database, current: str) -> None:
    with db.read() as connection:
        oldest = connection.execute(select(func.max(schema_readers.c.oldest))).scalar_one()
    if oldest is None or oldest > HEAD:
        raise Conflict(
            f"the database has schema {current}, which servers below {oldest} cannot use; this one knows {HEAD}",
            hint="it was used by a newer Windlass: install that version, or use another database",
        )


def current_revision(db: Database) -> str | None:
    with db.read() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        row = connection.execute(text("SELECT version_num FROM alembic_version")).first()
        return row[0] if row else None
