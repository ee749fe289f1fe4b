"""What is in every step of a training: `job.log`, and telling the supervisor how far this process is.

After a step nothing of ours is in the processor's caches any more, and what a call costs is what it touches. So it is
an object of few fields, and what happens every time is written out in one function.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from time import time
from typing import Any

from windlass.agent.progress import ProgressFile
from windlass.job.spool import Spool

_LONGEST_NAME = 250
_LATE_STEPS = 4
_STEPS_END = 2**63


class Logbook:
    """Without `spool` and `progress` it is that of a process outside a run."""

    __slots__ = ("_last", "_names", "_newest", "_path", "_progress", "_spool", "_tell")

    def __init__(self, spool: Spool | None, progress: str | None) -> None:
        self._names: set[str] = set()
        self._newest = -1  # the step that was told last
        self._spool = spool
        self._last: dict[str, float] = {}  # outside a run; in one, the spool knows
        self._path = progress
        self._progress: ProgressFile | None = None
        self._tell: Callable[[int], None] = self._tell_first

    def log(self, step: int | None, total: int | None, metrics: dict[str, Any]) -> None:
        """`metrics` is kept: it is the caller's no more."""
        if not self._names.issuperset(metrics):
            self._names.update(map(_checked, metrics))
        # Here and not in the writer's thread, where nobody would hear of a value that is none; floats are as they are.
        for value in metrics.values():
            if type(value) is not float:
                metrics = {name: _value(name, value) for name, value in metrics.items()}
                break
        if total is not None:
            total = count_of("total", total)
        if step is not None:
            if type(step) is not int or not 0 <= step < _STEPS_END:
                step = count_of("step", step)
            if not 0 <= self._newest - step <= _LATE_STEPS:
                self._newest = step
                self._tell(step)
        spool = self._spool
        if spool is None:
            self._last.update(metrics)
            return
        spool.append((time(), step, total, metrics))
        if spool.is_asleep:
            spool.wake()

    def last(self) -> dict[str, float]:
        return dict(self._last) if self._spool is None else self._spool.last()

    def stepped(self, step: int) -> None:
        """Tell the supervisor that `step` is finished; told twice it counts once. Several may tell, and some a little
        later, when a device is through with it."""
        if not 0 <= self._newest - step <= _LATE_STEPS:
            self._newest = step
            self._tell(step)

    def restored(self, step: int, load_s: float) -> None:
        """Tell the supervisor that this process goes on from `step`."""
        self._newest = step
        if (progress := self._open()) is not None:
            progress.restored(step, load_s)

    def finished(self) -> None:
        """Tell the supervisor that no more steps are to come: none is missed while this process evaluates, exports or
        waits for what is still written. Whoever goes on all the same tells the next one."""
        if (progress := self._open()) is not None:
            progress.finished()

    def _open(self) -> ProgressFile | None:
        """Made when there is something to tell: a process beside the rank, with its environment, is not to undo what
        the rank has told."""
        if self._progress is None and self._path is not None:
            try:
                self._progress = ProgressFile(self._path)
            except OSError:
                self._path = None  # a full disk, say: telling how far we are is not worth the training
        return self._progress

    def _tell_first(self, step: int) -> None:
        progress = self._open()
        self._tell = _tell_nobody if progress is None else progress.stepped
        self._tell(step)


def _tell_nobody(_: int) -> None: ...


def _checked(name: str) -> str:
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise ValueError(f"{name[:60]!r} is no metric name: write 1 to {_LONGEST_NAME} printable characters")
    return name


def _value(name: str, value: Any) -> float:
    try:
        item = getattr(value, "item", None)  # a tensor's own way: torch warns of float() where it has a gradient
        return float(value if item is None else item())
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor of several elements
        shown = f"{type(value).__name__} ({error})"
        raise TypeError(f"metric {name!r} must be a number, not {shown}") from error


def count_of(what: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        try:
            number = int(value) if float(value).is_integer() else -1
        except (TypeError, ValueError):
            number = -1
    if not 0 <= number < _STEPS_END:
        raise ValueError(f"`{what}` is {value!r}, but must be a whole number from 0 to 2**63 - 1")
    return number
