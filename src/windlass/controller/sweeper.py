"""A thread beside the controller's passes, for what takes its time: `Sweeper`.

It looks when it is nudged, and every few seconds for what other controllers have left. What is left to do is in the
database alone, so trouble costs nothing but trying again later.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from windlass.core.errors import WindlassError

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 5.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_STOP_WITHIN_S = 5.0


class Sweeper(ABC):
    def __init__(self, what: str, done: str) -> None:
        """What is done, for people: "logs", "archived"."""
        self._what, self._done = what, done
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def sweep(self) -> None:
        """Do all there is to do now. Raises Unavailable if what it needs is away."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=type(self).__name__.lower(), daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """There may be something to do. Safe from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """What is under way is finished or done again later; a send that hangs is not waited for."""
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
                log.info("%s are being %s again", self._what, self._done)
            pause_s = 0.0
            self._wake.wait(_LOOK_EVERY_S)
            self._wake.clear()

    def _tell(self, error: Exception, *, first: bool) -> None:
        """Once for each time of trouble: it may last for hours."""
        if not first or self._stopping.is_set():
            return
        if isinstance(error, WindlassError):
            log.warning("%s cannot be %s now: %s; trying again", self._what, self._done, error)
        else:
            log.exception("%s cannot be %s now; trying again", self._what, self._done)
