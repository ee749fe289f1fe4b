"""Bringing the tables of one transaction to a given schema: an old backup is restored as it was, then brought up."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

import windlass.db


def upgrade(tx: Connection, revision: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(windlass.db.__file__).parent / "migrations"))
    config.attributes["connection"] = tx
    command.upgrade(config, revision)
