"""Makes chunks of metric points that have arrived, thins old ones and removes older ones; takes over what servers of
the version before still write. A thread of its own: packing takes its time, and passes must not wait for it.

What is left to do is in the database alone. A compaction that another controller has done meanwhile is given up, so the
lease is asked whether to look at all, and not before every write.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, exists, select

from windlass.core.clock import Clock
from windlass.core.errors import Conflict, WindlassError
from windlass.db.database import Database
from windlass.runs.tables import runs
from windlass.runs.tracked import catch_up
from windlass.tracking import chunks
from windlass.tracking.compaction import ENOUGH, MANY, decide_compaction
from windlass.tracking.tables import points

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 2.0
_REST = 3.0  # times as long as a look took: a busy server has better things to do
_LONGEST_REST_S = 30.0
_SETTLED_S = 600.0  # a run that logged nothing for as long gets chunks of what there is
_OLD_EVERY_S = 600.0  # points of the version before, and those whose time is up
# Servers of the version before see no others, and an upgrade may take its time, and be taken back.
_OLD_POINTS_STAY_S = 30 * 86_400.0  # after the end of their run
_CATCH_UP_EVERY_S = 60.0
_STOP_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How long points are kept, by their own time; None: for ever. Summaries stay in any case."""

    points_s: float | None = None  # each of them; roll-ups from then on
    rollups_s: float | None = None


class Compactor:
    def __init__(
        self,
        db: Database,
        clock: Clock,
        *,
        is_ours: Callable[[], bool] = lambda: True,
        keeping: Keeping | None = None,
        settled_s: float = _SETTLED_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_ours` says whether this server is the one to do it now, from any thread."""
        self._db = db
        self._clock = clock
        self._is_ours = is_ours
        self._keeping = keeping or Keeping()
        self._settled_s = settled_s
        self._monotonic = monotonic
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # What was there when, and how far the old have been looked through. Losing that costs waiting or looking again.
        self._newest: deque[tuple[float, int]] = deque()
        self._next_old = 0.0
        self._next_catching_up = 0.0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="compactor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """What is being packed is given up: it is still there as it was."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_WITHIN_S)

    def _run(self) -> None:
        pause_s = _LOOK_EVERY_S
        while not self._stopping.wait(pause_s):
            began = self._monotonic()
            try:
                self.catch_up()
                if self._is_ours():
                    self.sweep()
                    self.look_at_old()
            except WindlassError as error:
                log.warning("metrics cannot be packed now: %s; trying again", error)
            except Exception:
                # The thread is a boundary: whatever it is, everything is still to be found in the database.
                log.exception("metrics cannot be packed now; trying again")
            took_s = self._monotonic() - began
            pause_s = min(max(_LOOK_EVERY_S, _REST * took_s), _LONGEST_REST_S)

    def catch_up(self) -> None:
        """Runs that servers of the version before have submitted or moved on get their other face. Whoever has the
        lease: that may be one of those."""
        now = self._monotonic()
        if now >= self._next_catching_up:
            catch_up(self._db)
            self._next_catching_up = now + _CATCH_UP_EVERY_S

    def sweep(self) -> int:
        """Do all there is to do with what has arrived. How many compactions there were."""
        done = 0
        settled = self._settled()
        with self._db.read() as tx:
            busy = chunks.load_busy(tx, many=MANY, enough=ENOUGH, settled=settled)
        for run_id in busy:
            while not self._stopping.is_set() and self._compact(run_id, settled):
                done += 1
        return done

    def _compact(self, run_id: str, settled: int) -> bool:
        with self._db.read() as tx:
            compaction = decide_compaction(chunks.load_tails(tx, run_id), settled=settled)
        if compaction is None:
            return False
        try:
            chunks.compact(self._db, run_id, compaction)
        except Conflict:
            return False  # another server was faster
        return True

    def look_at_old(self) -> None:
        """Points of the version before become chunks, if no server of that version can still want them; what is older
        than is to be kept goes."""
        now = self._monotonic()
        if now < self._next_old:
            return
        with self._db.read() as tx:
            ended = _load_ended_with_points(tx, before=self._clock.now() - _OLD_POINTS_STAY_S)
        for run_id in ended:
            while not self._stopping.is_set() and chunks.move_old_points(self._db, run_id):
                pass
        self._let_go(self._keeping.points_s, chunks.thin_chunks)
        self._let_go(self._keeping.rollups_s, chunks.delete_chunks)
        self._next_old = now + _OLD_EVERY_S

    def _let_go(self, keep_s: float | None, some: Callable[..., float | None]) -> None:
        if keep_s is None:
            return
        before, place = self._clock.now() - keep_s, 0.0
        while not self._stopping.is_set():
            with self._db.write() as tx:
                reached = some(tx, after=place, before=before)
            if reached is None:
                return
            place = reached

    def _settled(self) -> int:
        """The newest tail of some time ago."""
        now = self._monotonic()
        with self._db.read() as tx:
            newest = chunks.load_newest(tx)
        if not self._newest or newest != self._newest[-1][1]:
            self._newest.append((now, newest))
        settled = 0
        while self._newest and now - self._newest[0][0] >= self._settled_s:
            settled = self._newest[0][1]
            if len(self._newest) == 1:
                return settled
            self._newest.popleft()
        if settled:
            self._newest.appendleft((now - self._settled_s, settled))
        return settled


def _load_ended_with_points(tx: Connection, *, before: float) -> list[str]:
    """Runs that ended by then and have points where the version before keeps them."""
    query = select(runs.c.id).where(runs.c.ended_at < before, exists().where(points.c.run_id == runs.c.id))
    return list(tx.execute(query.order_by(runs.c.id)).scalars())
