"""Two transactions at once, in an order that is the same every time."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from sqlalchemy import text

from windlass.db.database import Database


def until_it_waits(database: Database, deed: Future[Any]) -> None:
    """Until the deed waits for a lock of ours, or is over. On SQLite writers wait for each other from the start."""
    waiting = text("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    while not database.is_sqlite and not deed.done():
        with database.read() as tx:
            if tx.execute(waiting).first():
                return
