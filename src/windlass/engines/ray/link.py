"""The engine's end of the driver process: keeps one running, remembers what it said last, hands requests over.

A driver that dies or hangs is replaced, and with it everything that it had been asked and not done; whoever asked
sees from the tables that it did not happen, and asks again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.core.errors import Unavailable
from windlass.engines.ray.tables import Tables

log = logging.getLogger(__name__)

_FRESH_S = 5.0  # tables older than this say nothing about now
_CONNECT_PATIENCE_S = 120.0  # starting a head of our own takes a while
_HANG_PATIENCE_S = 12.0  # calls take milliseconds while Ray is well
_BACKOFF_S = (0.5, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a request; no `kind`: it was done."""

    kind: str | None = None
    message: str = ""


class Link:
    def __init__(self, command: Sequence[str], *, log_file: Path, notify: Callable[[], None]) -> None:
        """`command` starts the driver; the number of its socket is appended."""
        self._command = command
        self._log_file = log_file
        self._notify = notify
        self._ids = itertools.count(1)
        self._changed = threading.Condition()
        # Guarded by the condition:
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._tables: tuple[float, Tables] | None = None
        self._under_way: set[int] = set()
        self._wanted: set[int] = set()  # requests whose answers are kept
        self._answers: dict[int, Answer] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._keep_running, name="ray-driver", daemon=True)
        self._thread.start()

    def tables(self) -> Tables | None:
        """What Ray said last; None if that was too long ago."""
        with self._changed:
            if self._tables is None or time.monotonic() - self._tables[0] > _FRESH_S:
                return None
            return self._tables[1]

    def ask(self, op: str, *, wants_answer: bool = False, **fields: Any) -> int:
        """Hand a request over; its number. Raises Unavailable if there is nobody to take it."""
        with self._changed:
            if self._connection is None:
                raise Unavailable(f"Ray cannot be asked now; see {self._log_file}")
            number = next(self._ids)
            try:
                self._connection.sendall(json.dumps({"op": op, "id": number, **fields}).encode() + b"\n")
            except OSError as error:
                self._kill()  # half a line may be on its way
                raise Unavailable(f"Ray's driver does not listen: {error}") from error
            self._under_way.add(number)
            if wants_answer:
                self._wanted.add(number)
            return number

    def is_under_way(self, number: int) -> bool:
        with self._changed:
            return number in self._under_way

    def take_answer(self, number: int) -> Answer | None:
        """None while it is under way, and if its driver died first."""
        with self._changed:
            return self._answers.pop(number, None)

    def wait(self, number: int, timeout_s: float) -> Answer | None:
        with self._changed:
            self._changed.wait_for(lambda: number not in self._under_way, timeout_s)
            return self._answers.pop(number, None)

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._kill()
            self._changed.notify_all()
        self._thread.join()

    # ---- the thread ----------------------------------------------------------------------------------------------

    def _keep_running(self) -> None:
        backoff_s, most_s = _BACKOFF_S
        while True:
            connection = self._start()
            if connection is None:
                return
            heard = self._listen(connection)
            self._clear_away(connection)
            backoff_s = _BACKOFF_S[0] if heard else min(most_s, backoff_s * 2)
            with self._changed:
                if self._changed.wait_for(lambda: self._closing, backoff_s):
                    return
                log.warning("Ray's driver ended; starting another. Its words are in %s", self._log_file)

    def _start(self) -> socket.socket | None:
        """The connection to a new driver; None when closing."""
        own, other = socket.socketpair()
        own.settimeout(_CONNECT_PATIENCE_S)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with self._changed, other, self._log_file.open("ab") as output:
            if self._closing:
                own.close()
                return None
            self._process = subprocess.Popen(
                [*self._command, f"--fd={other.fileno()}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[other.fileno()],
                env={**os.environ, "RAY_DEDUP_LOGS": "0", "PYTHONUNBUFFERED": "1"},
            )
        return own

    def _listen(self, connection: socket.socket) -> bool:
        """Until the driver is gone or silent for too long; whether it ever said anything."""
        heard = False
        rest = b""
        while True:
            try:
                data = connection.recv(1 << 20)
            except OSError:  # the time is over
                return heard
            if not data:
                return heard
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line), connection)
            if lines and not heard:
                heard = True
                connection.settimeout(_HANG_PATIENCE_S)

    def _take(self, message: Mapping[str, Any], connection: socket.socket) -> None:
        with self._changed:
            if "tables" in message:
                found = Tables.from_json(message["tables"])
                news = self._tables is None or _without_load(self._tables[1]) != _without_load(found)
                self._tables = (time.monotonic(), found)
                self._connection = connection
            else:
                news = True
                self._under_way.discard(message["done"])
                self._keep_answer(message["done"], Answer(**(message["error"] or {})))
                self._changed.notify_all()
        if news:
            self._notify()

    def _keep_answer(self, number: int, answer: Answer) -> None:
        if number in self._wanted:
            self._wanted.discard(number)
            self._answers[number] = answer
        elif answer.kind is not None:
            log.warning("Ray has not done what it was asked: %s: %s", answer.kind, answer.message)

    def _clear_away(self, connection: socket.socket) -> None:
        with self._changed:
            self._connection = None
            self._kill()
            assert self._process is not None
            self._under_way.clear()
            self._wanted.clear()
            self._answers.clear()
            self._changed.notify_all()
        connection.close()
        self._process.wait()

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


def _without_load(tables: Tables) -> tuple[object, ...]:
    """What a change of is worth looking at: others' load is looked at often enough anyway."""
    nodes = frozenset((node.id, node.alive, node.draining) for node in tables.nodes)
    return nodes, tables.groups, tables.actors, tables.followed
