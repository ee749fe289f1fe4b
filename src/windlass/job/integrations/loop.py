"""What our callbacks do in a framework's own loop, whichever that is: tell its steps, and stop it in good order.

SIGTERM is heeded at the end of a step, by all ranks at the same one.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from typing import Any, NoReturn

from windlass.job.checkpoint.checkpoints import STOPPED
from windlass.job.checkpoint.peers import Exchange, Peers
from windlass.job.integrations.registration import close_registration, registration
from windlass.job.session import session

_TELL_EVERY_S = 1.0  # of what people see; the supervisor is told every step
_PATIENCE_S = 30.0  # of a run that is told to stop, for what is still sent to its store


class Loop:
    """Every rank calls everything, at the same steps."""

    def __init__(self) -> None:
        self.is_stopping = False  # agreed: `leave` follows as soon as the state is saved
        self._is_warned = False  # this rank is
        self._peers: Peers | None = None
        self._exchange: Exchange | None = None
        self._previous: Any = None
        self._told_at = -math.inf

    def begin(self, step: int, *, is_warned: bool = False) -> None:
        """Before the first step. `step`: how many are done already; the state is loaded then."""
        self.is_stopping, self._is_warned = False, is_warned
        self._peers, self._exchange = Peers(), None
        if step > 0:
            session().restored(step, registration().since_asked_s() if session().is_main else 0.0)
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._on_warning)

    def stepped(self, step: int, total: int | None) -> bool:
        """So many are done. True: save now, and `leave`."""
        session().stepped(step)
        self.is_stopping = self._agreed()
        is_last = self.is_stopping or step == total
        if session().is_main and (is_last or time.monotonic() - self._told_at >= _TELL_EVERY_S):
            self._told_at = time.monotonic()
            session().log(step, total if total is not None and total >= step else None, {})
        return self.is_stopping

    def pause(self) -> None:
        """No step is to be missed until the next one: an evaluation may take longer than any of them."""
        session().finished()

    def end(self) -> None:
        """There are no more steps, for whatever reason. Told twice it is over all the same."""
        session().finished()
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def leave(self) -> NoReturn:
        """When all that was saved is a checkpoint of the run: until then no rank ends, since the others would be ended
        with it."""
        assert self._peers is not None
        if session().is_main:
            registration().settle()
        self._peers.largest([0])
        close_registration(wait_s=_PATIENCE_S)
        self.end()
        raise SystemExit(STOPPED)

    def _agreed(self) -> bool:
        """A signal may reach one rank alone, or between two steps of others: what each of them knew at the step before
        counts, so that nobody waits for the slowest."""
        if self._peers is None or self._peers.world_size == 1:
            return self._is_warned
        known = self._exchange is not None and bool(self._exchange.result()[0])
        self._exchange = None if known else self._peers.begin_largest([int(self._is_warned)])
        return known

    def _on_warning(self, _number: int, _frame: Any) -> None:
        self._is_warned = True
