"""What can be done with artifacts; one transaction each."""

from __future__ import annotations

from windlass.blobs.contract import Blobs
from windlass.core.clock import Clock
from windlass.db.database import Database


class ArtifactService:
    def __init__(self, *, db: Database, clock: Clock, blobs: Blobs) -> None:
        self._db = db
        self._clock = clock
        self._blobs = blobs
