"""What can be done with traces; one transaction each."""

from __future__ import annotations

from windlass.core.clock import Clock
from windlass.db.database import Database


class TraceService:
    def __init__(self, *, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
