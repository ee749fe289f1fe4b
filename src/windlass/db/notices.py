"""Telling other processes that something has changed, through PostgreSQL's LISTEN and NOTIFY.

A convenience: whoever listens also looks by itself every now and then, so a notice that gets lost costs time only.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

import psycopg

from windlass.db.database import postgres_patience

log = logging.getLogger(__name__)

_LOOK_UP_S = 1.0  # how soon the thread notices that it should end
_AGAIN_S = 1.0


class Listener:
    """A thread with a connection of its own that calls `heard` for every notice on `channel`, and after every
    reconnection: something may have been said meanwhile."""

    def __init__(self, url: str, channel: str, heard: Callable[[], None]) -> None:
        self._url = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._patience = postgres_patience(url)
        self._channel = channel
        self._heard = heard
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"listener-{channel}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=_LOOK_UP_S + 5)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except psycopg.Error as error:
                log.info("notices of %s cannot be heard now: %s", self._channel, error)
                self._stopping.wait(_AGAIN_S)

    def _listen(self) -> None:
        with contextlib.closing(psycopg.connect(self._url, autocommit=True, **self._patience)) as connection:
            connection.execute(f"LISTEN {self._channel}")
            self._heard()
            while not self._stopping.is_set():
                for _ in connection.notifies(timeout=_LOOK_UP_S):
                    self._heard()
