"""Writes of several threads in one transaction. What takes time in a small write is the disk that confirms it; while it
does, others come, and the next transaction is for all of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection

from windlass.db.database import Database

T = TypeVar("T")
_MOST = 64  # in one transaction: nobody is to wait for all the world


class _Turn:
    __slots__ = ("deed", "done", "error", "key", "value")

    def __init__(self, deed: Callable[[Connection], Any], key: str) -> None:
        self.deed = deed
        self.key = key
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None


class GroupedWrites:
    """Safe from any thread. Nobody waits for others to come: a lone write is a transaction of its own."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._waiting: deque[_Turn] = deque()
        self._leading = threading.Lock()

    def write(self, deed: Callable[[Connection], T], *, key: str = "") -> T:
        """What `deed` returns, once it is on disk; what it raises, with nothing of it written. It may be called twice,
        the first time in a transaction that is given up because of somebody else's. In one transaction deeds follow
        each other by `key`: give what they lock, so that two servers do not lock in different orders."""
        turn = _Turn(deed, key)
        self._waiting.append(turn)
        while not turn.done:
            with self._leading:  # who gets it writes for all that have come by then
                if not turn.done:
                    self._lead()
        if turn.error is not None:
            raise turn.error
        value: T = turn.value
        return value

    def _lead(self) -> None:
        turns = sorted((self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))), key=lambda t: t.key)
        try:
            if not self._together(turns):
                for turn in turns:
                    self._alone(turn)
        except BaseException as error:
            for turn in turns:
                turn.error = turn.error or error
            raise
        finally:
            for turn in turns:
                turn.done = True

    def _together(self, turns: Sequence[_Turn]) -> bool:
        """False if one of them cannot be done, and so none was. Trouble with the database itself is everybody's: it may
        have come after all was written."""
        if len(turns) == 1:
            self._alone(turns[0])
            return True
        is_ours = False
        try:
            with self._db.write() as tx:
                is_ours = True
                for turn in turns:
                    turn.value = turn.deed(tx)
                is_ours = False
        except Exception as error:
            if is_ours:
                return False
            for turn in turns:
                turn.error = error
        return True

    def _alone(self, turn: _Turn) -> None:
        try:
            with self._db.write() as tx:
                turn.value = turn.deed(tx)
        except Exception as error:
            turn.error = error
