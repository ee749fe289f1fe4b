"""Moves the logs of attempts that are over to the blobs, where every server can read them. A thread of its own: sending
takes its time, and passes must not wait for it.

What is left to do is in the database alone. Two controllers that do the same, because a shard has just passed from one
to the other, write the same; so the lease is asked for whose attempts to take, and not before every write.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from windlass.blobs.contract import Blobs
from windlass.core.clock import Clock
from windlass.core.errors import Unavailable, WindlassError
from windlass.db.database import Database
from windlass.runs import aftermath
from windlass.runs.aftermath import UnarchivedLogs
from windlass.runs.store import Slots
from windlass.tracking.archiving import archive_attempt

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 5.0  # a release says so at once; this is for what other controllers have left
_AGAIN_EVERY_S = 300.0  # those left behind: a folder may have been another machine's, or away
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_STOP_WITHIN_S = 5.0
_START = (0.0, "")


class Archivist:
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
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._slots = slots
        self._monotonic = monotonic
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # How far it has come in the order of release, for whom, and since when: it need not begin at the first each
        # time. Losing that costs looking at them again.
        self._after = _START
        self._looked_for: Slots = frozenset()
        self._begun_at = 0.0
        self._left: set[str] = set()  # warned of

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="archivist", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """There may be something to move. Safe from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """What is being moved is finished or done again later; a send that hangs is not waited for."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_STOP_WITHIN_S)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            try:
                self.sweep()
            except Exception as error:
                # The thread is a boundary: whatever it is, everything is still to be found in the database.
                self._tell(error, first=not pause_s)
                pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
                continue
            if pause_s:
                log.info("logs are being archived again")
            pause_s = 0.0
            self._wake.wait(_LOOK_EVERY_S)
            self._wake.clear()

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

    def _tell(self, error: Exception, *, first: bool) -> None:
        """Once for each time of trouble: it may last for hours."""
        if not first or self._stopping.is_set():
            return
        if isinstance(error, WindlassError):
            log.warning("logs cannot be archived now: %s; trying again", error)
        else:
            log.exception("logs cannot be archived now; trying again")
