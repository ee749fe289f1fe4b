"""Bringing a database to the schema of this version. Alembic is imported only when there is something to do: a server
that finds its schema current starts without it.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import inspect, text

from windlass.core.errors import Conflict
from windlass.db.database import Database

HEAD = "0001"
_LOCK_KEY = 0x57494E44  # any number, the same for all servers


def migrate(db: Database) -> None:
    """Idempotent; servers that start together take turns."""
    if current_revision(db) == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with db.write() as connection:
        if not db.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, HEAD)
        except CommandError as error:
            raise Conflict(
                f"the database has a schema that this version does not know ({error})",
                hint="it was used by a newer Windlass: install that version, or use another database",
            ) from error


def current_revision(db: Database) -> str | None:
    with db.read() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        row = connection.execute(text("SELECT version_num FROM alembic_version")).first()
        return row[0] if row else None
