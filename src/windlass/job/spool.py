"""The file a rank's metrics, alerts and notes of checkpoints go to, written by a background thread: no training loop
waits for a disk.

Lines are appended whole, so a reader can follow the file while it grows, and a forked process can share it.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

Point: TypeAlias = tuple[float, int | None, int | None, dict[str, float]]


class Alert(NamedTuple):
    at: float
    step: int | None
    kind: str
    message: str
    once: bool = False  # however many processes raise it


class Measured(NamedTuple):
    """A point of ours rather than of the program's: it is no part of what the program logged last."""

    at: float
    step: int | None
    total: int | None
    values: dict[str, float]


class SaveNote(NamedTuple):
    """That a checkpoint was saved, removed or found corrupt, for the catalogue."""

    at: float
    step: int | None
    said: dict[str, object]


class PlanNote(NamedTuple):
    """By which plan the run trains, for its record."""

    at: float
    plan: str


Record: TypeAlias = Point | Measured | Alert | SaveNote | PlanNote
_BATCH_S = 0.2
_WRITE_BYTES = 64 << 10
_AT_ONCE = 10  # rendered in a tenth of a millisecond or so
_IDLE_BATCHES = 25  # so often the thread looks in vain before it waits to be woken
# What is kept while the disk does not take it: about an hour of a busy loop, some tens of MB.
_MOST_WAITING = 200_000


class Spool:
    __slots__ = (
        "__weakref__",
        "_complained",
        "_last",
        "_lock",
        "_thread",
        "_unwritten",
        "_waiting",
        "_wake",
        "_writing",
        "append",
        "is_asleep",
        "path",
    )
    is_asleep: bool  # whether the thread waits to be woken; else it looks by itself

    def __init__(self, path: str) -> None:
        self.path = path
        self._last: dict[str, float] = {}  # of every metric, as far as it is rendered
        self._waiting: deque[Record] = deque(maxlen=_MOST_WAITING)
        self.append = self._waiting.append  # whoever uses it wakes the thread if that is asleep
        self._reset()
        _open_spools.add(self)

    def add(self, record: Record) -> None:
        """A few microseconds; never blocks and never fails because of the disk."""
        self.append(record)
        if self.is_asleep:
            self.wake()

    def wake(self) -> None:
        """It takes longer than all the rest: not to be done while there is something now and then."""
        self.is_asleep = False
        self._wake.set()
        if self._thread is None:
            self._start()

    def flush(self) -> None:
        with self._lock:
            self._render(len(self._waiting))
        self._write()

    def last(self) -> dict[str, float]:
        """The last value of every metric."""
        with self._lock:
            return self._last_of(tuple(self._waiting))

    def _last_of(self, waiting: Iterable[Record]) -> dict[str, float]:
        found = dict(self._last)
        for record in waiting:
            found.update(_logged(record))
        return found

    def _render(self, most: int) -> None:
        lines: list[str] = []
        while self._waiting and len(lines) < most:
            record = self._waiting.popleft()
            lines.append(_render(record))
            self._last.update(_logged(record))  # not by the training, which would have to touch each of them
        if lines:
            self._unwritten += "".join(lines).encode()

    def _reset(self) -> None:
        # Also after a fork: what waits belongs to the parent, and its thread and locks stayed there.
        self._last = self._last_of(self._waiting)
        self._waiting.clear()
        self._unwritten = b""
        self._lock = threading.Lock()  # of what waits and of what is rendered
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self.is_asleep = True
        self._thread: threading.Thread | None = None
        self._complained = False

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._work, name="windlass-metrics", daemon=True)
            self._thread.start()
        if util := sys.modules.get("multiprocessing.util"):
            # Forked multiprocessing workers end without atexit, but run these.
            util.Finalize(None, self.flush, exitpriority=100)

    def _work(self) -> None:
        while True:
            self._wake.wait()
            idle = 0
            while idle < _IDLE_BATCHES:
                time.sleep(_BATCH_S)
                idle = 0 if self._waiting else idle + 1
                self._drain()
            self._wake.clear()
            self.is_asleep = True  # before looking: what comes from now on wakes again
            if self._waiting:
                self.is_asleep = False
                self._wake.set()

    def _drain(self) -> None:
        while self._waiting:
            # A few at a time: the training waits for the interpreter while this thread has it.
            with self._lock:
                self._render(max(_AT_ONCE, len(self._waiting) // _AT_ONCE))
            if len(self._unwritten) >= _WRITE_BYTES:  # who logs without a pause is never through
                self._write()
            if self._waiting:
                time.sleep(0)
        self._write()

    def _write(self) -> None:
        # By one at a time, in order; and not under the lock that whoever saves a checkpoint needs.
        with self._writing:
            with self._lock:
                left, self._unwritten = self._unwritten, b""
            if left:
                left = self._written(left)
            if left:
                with self._lock:
                    self._unwritten = left + self._unwritten

    def _written(self, lines: bytes) -> bytes:
        """What is left of them."""
        try:
            # Opened each time: five times a second at most, and nothing to keep straight across forks.
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                while lines:
                    lines = lines[os.write(fd, lines) :]
            finally:
                os.close(fd)
        except OSError as error:
            # A full disk must not end a training run. What is left goes out with the next batch.
            if not self._complained:
                print(f"windlass: metrics cannot be written to {self.path} now: {error}", file=sys.stderr)
            self._complained = True
            if len(lines) > 64_000_000:
                # Too much: give up the rest, but end the line that may be half in the file.
                lines = lines[: lines.find(b"\n") + 1]
        return lines


# Made once: `json.dumps` with separators makes one for every call, which takes three times as long as the encoding.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def _logged(record: Record) -> dict[str, float]:
    """What the program itself has logged with it."""
    return record[3] if type(record) is tuple else {}  # type: ignore[misc,return-value]  # a Point, and no other


def _render(record: Record) -> str:
    if isinstance(record, Alert):
        said: dict[str, object] = {"kind": record.kind, "message": record.message}
        if record.once:
            said["once"] = True
        return _encode({"t": round(record.at, 6), "s": record.step, "a": said}) + "\n"
    if isinstance(record, SaveNote):
        return _encode({"t": round(record.at, 6), "s": record.step, "c": record.said}) + "\n"
    if isinstance(record, PlanNote):
        return _encode({"t": round(record.at, 6), "p": record.plan}) + "\n"
    at, step, total, values = record
    # Those with a step are told apart by it; a millisecond is what charts and other stores know, and takes less room.
    line: dict[str, object] = {"t": round(at, 6 if step is None else 3), "s": step, "m": values}
    if total is not None:
        line["n"] = total
    return _encode(line) + "\n"


_open_spools: weakref.WeakSet[Spool] = weakref.WeakSet()


def _flush_all() -> None:
    for spool in list(_open_spools):
        spool.flush()


def _reset_all() -> None:
    for spool in list(_open_spools):
        spool._reset()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_reset_all)
