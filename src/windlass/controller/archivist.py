"""Moves the logs of attempts that are over to the blobs, where every server can read them. A thread of its own: sending
takes its time, and passes must not wait for it.

What is left to do is in the database alone. Two controllers that do the same, because a shard has just passed from one
to the other, write the same; so the lease is asked for whose attempts to take, and not before every write.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from windlass.blobs.contract import Blobs
from windlass.controller.sweeper import Sweeper
from windlass.core.clock import Clock
from windlass.core.errors import Unavailable
from windlass.db.database import Database
from windlass.runs import aftermath
from windlass.runs.aftermath import UnarchivedLogs
from windlass.runs.store import Slots
from windlass.tracking.archiving import archive_attempt

log = logging.getLogger(__name__)

_AGAIN_EVERY_S = 300.0  # those left behind: a folder may have been another machine's, or away
_START = (0.0, "")


class Archivist(Sweeper):
    def __init__(
        self,
        db: Database,
        blobs: Blobs,
        clock: Clock,
        slots: Callable[[], Slots],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`slots` gives those of the attempts to look after now, from any thread; None: all."""
        super().__init__("logs", "archived")
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._slots = slots
        self._monotonic = monotonic
        # How far it has come in the order of release, for whom, and since when: it need not begin at the first each
        # time. Losing that costs looking at them again.
        self._after = _START
        self._looked_for: Slots = frozenset()
        self._begun_at = 0.0
        self._left: set[str] = set()  # warned of

    def sweep(self) -> None:
        """Move all there is to move now. Raises Unavailable if the blobs or the database are away."""
        slots = self._slots()
        if slots is not None and not slots:
            return
        self._begin_again_if_due(slots)
        while not self._stopping.is_set():
            with self._db.read() as tx:
                waiting = aftermath.load_unarchived(tx, slots, after=self._after)
            if not waiting:
                return
            for item in waiting:
                if self._stopping.is_set():
                    return
                self._archive(item)
                self._after = (item.released_at, item.attempt_id)

    def _begin_again_if_due(self, slots: Slots) -> None:
        now = self._monotonic()
        if slots != self._looked_for or now - self._begun_at >= _AGAIN_EVERY_S:
            self._after, self._looked_for, self._begun_at = _START, slots, now

    def _archive(self, item: UnarchivedLogs) -> None:
        try:
            places = archive_attempt(self._db, self._blobs, item.attempt_id, item.log_dirs)
        except Unavailable:
            raise
        except Exception as error:
            # This attempt's own trouble (its folder is not here, or another controller is at it too), which must not
            # keep those after it waiting. It stays on the list, and nothing is concluded.
            if item.attempt_id not in self._left:
                log.warning("logs of attempt %s cannot be archived yet: %s", item.attempt_id, error)
            self._left.add(item.attempt_id)
            return
        self._left.discard(item.attempt_id)
        with self._db.write() as tx:
            aftermath.mark_archived(tx, item.attempt_id, places, now=self._clock.now())
