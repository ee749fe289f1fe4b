"""How far a rank is: a few bytes in the node's folder that the rank rewrites at every step and its supervisor reads.

Shared memory rather than a message: telling costs the rank less than a microsecond, wakes nobody, and what was told
last is still there when the rank is dead. Standard library only: this module runs in the user's interpreter too.
"""

from __future__ import annotations

import mmap
import os
import struct
from time import monotonic, time
from typing import Any, Iterable, NamedTuple

_FORMAT = struct.Struct("<qqdddqd")
_NEVER = -1


class Progress(NamedTuple):
    """Times are CLOCK_MONOTONIC of the node."""

    step: int  # the last one that was finished; -1: none yet
    restored_step: int  # where this process went on from; -1: it began anew
    stepped_at: float  # when that step was finished
    restored_at: float  # when the state had been loaded; 0: nothing was
    load_s: float  # how long that took
    steps: int  # how many this process has finished
    finished_at: float = 0.0  # when it said that there are no more to come; 0: there may be


NOTHING = Progress(_NEVER, _NEVER, 0.0, 0.0, 0.0, 0)
_STEP, _RESTORED_STEP, _STEPPED_AT, _RESTORED_AT, _LOAD_S, _STEPS, _FINISHED_AT = range(len(Progress._fields))


class ProgressFile:
    """The rank's side. What a former process of this rank has left is overwritten."""

    __slots__ = ("_counts", "_is_finished", "_memory", "_steps", "_times")

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, _FORMAT.size)
            self._memory = mmap.mmap(fd, _FORMAT.size)
        finally:
            os.close(fd)
        self._memory[:] = _FORMAT.pack(*NOTHING)
        # In place, field by field: this is in every step of a training, which leaves nothing else of us in the caches.
        # To pack all of them and copy that takes three times as long.
        view = memoryview(self._memory)
        self._counts, self._times = view.cast("q"), view.cast("d")
        self._steps = 0
        self._is_finished = False

    def stepped(self, step: int) -> None:
        self._steps = steps = self._steps + 1
        counts = self._counts
        self._times[_STEPPED_AT] = monotonic()
        counts[_STEP] = step
        counts[_STEPS] = steps
        if self._is_finished:
            self._go_on()

    def restored(self, step: int, load_s: float) -> None:
        self._counts[_RESTORED_STEP] = step
        self._times[_LOAD_S] = load_s
        self._times[_RESTORED_AT] = monotonic()
        self._go_on()

    def finished(self) -> None:
        self._times[_FINISHED_AT] = monotonic()
        self._is_finished = True  # last: if another thread tells a step in between, the next one takes it back

    def _go_on(self) -> None:
        self._is_finished = False
        self._times[_FINISHED_AT] = 0.0


def tell(ranks: Iterable[Progress]) -> dict[str, Any] | None:
    """Of the rank that is furthest, with times of day: for the record. None where no rank has told anything."""
    told = [one for one in ranks if one.steps > 0 or one.restored_at > 0]
    if not told:
        return None
    furthest = max(told, key=lambda one: (one.step, one.stepped_at))
    offset_s = time() - monotonic()
    return {
        "step": furthest.step,
        "at": furthest.stepped_at + offset_s if furthest.steps else None,
        "steps": furthest.steps,
        "restored_step": furthest.restored_step if furthest.restored_at else None,
        "restored_at": furthest.restored_at + offset_s if furthest.restored_at else None,
        "load_s": round(furthest.load_s, 3) if furthest.restored_at else None,
    }


def read_progress(path: str) -> Progress:
    """The supervisor's side. NOTHING where no rank has told anything."""
    try:
        with open(path, "rb") as file:
            content = file.read(_FORMAT.size)
    except OSError:
        return NOTHING
    return Progress(*_FORMAT.unpack(content)) if len(content) == _FORMAT.size else NOTHING
