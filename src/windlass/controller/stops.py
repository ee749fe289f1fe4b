"""Asking engines to end attempts: those that are cancelled, and those that are warned because somebody needs their room
or their node goes away. A warning is on record before it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from windlass.controller import commit
from windlass.controller.decide import StopAttempt, is_news
from windlass.controller.lease import ShardLeases
from windlass.core.clock import Clock
from windlass.db.database import Database
from windlass.engines.contract import StopKind
from windlass.runs.leaving import load_warned
from windlass.runs.records import AttemptRecord

Stop = tuple[AttemptRecord, StopAttempt]


class Stops:
    """Not thread-safe: one controller loop owns it. Losing what it remembers costs a repeated signal."""

    def __init__(
        self, db: Database, lease: ShardLeases, clock: Clock, *, tell: Callable[[AttemptRecord, StopAttempt], None]
    ) -> None:
        """`tell` asks the engine, and says so (`heard`) if that can be asked."""
        self._db = db
        self._lease = lease
        self._clock = clock
        self._tell = tell
        self._sent: dict[str, StopAttempt] = {}
        self._leaving: Sequence[Stop] = ()

    def ask(self, stops: Sequence[Stop]) -> None:
        """Those that make room for other runs are left for `make_room`."""
        for stop in stops:
            if stop[1].kind is StopKind.CANCELLED:
                self._send(stop)
        self._warn([stop for stop in stops if stop[1].kind is StopKind.PREEMPTED and stop[1].by is None])
        self._leaving = [stop for stop in stops if stop[1].by is not None]

    def make_room(self) -> None:
        leaving, self._leaving = self._leaving, ()
        self._warn(leaving)

    def heard(self, attempt: AttemptRecord, how: StopAttempt) -> None:
        self._sent[attempt.id] = how

    def forget(self, attempt_id: str) -> None:
        self._sent.pop(attempt_id, None)

    def _warn(self, stops: Sequence[Stop]) -> None:
        """Only whose warning is on record is told: whoever dies in between, it is there once."""
        news = {attempt.run_id: (attempt, how) for attempt, how in stops if self._is_news(attempt, how)}
        if not news:
            return
        commit.commit_each(self._db, self._lease, news, partial(commit.commit_warnings, now=self._clock.now()))
        with self._db.read() as tx:
            warned = load_warned(tx, [attempt for attempt, _ in news.values()])
        for attempt, how in news.values():
            if attempt.id in warned:
                self._send((attempt, how))

    def _send(self, stop: Stop) -> None:
        if self._is_news(*stop):
            self._tell(*stop)

    def _is_news(self, attempt: AttemptRecord, how: StopAttempt) -> bool:
        return is_news(how, self._sent.get(attempt.id))
