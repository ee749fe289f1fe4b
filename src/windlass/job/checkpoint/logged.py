"""What a run's first rank has logged, read by a process beside it from the spool that the rank writes: `Logged`."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

_MOST_POINTS = 10_000  # a file is taken seconds after it was written: what was logged meanwhile is passed over
_READ_BYTES = 16 << 20


class Logged:
    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._position = 0
        self._points: deque[_Point] = deque()
        self._before: dict[str, _Point] = {}  # the last values of those that are no more among them

    def read(self) -> None:
        """What has come since. A spool that cannot be read costs the values, not the checkpoint."""
        try:
            with self._spool.open("rb") as file:
                while data := self._next(file):
                    for line in data.splitlines():
                        if (point := _point(line)) is not None:
                            self._add(point)
        except OSError:
            return

    def up_to(self, step: int | None, at: float) -> dict[str, float]:
        """The last values until that step was done; until that time, where it or they have no step. What is no number
        is among them: it says that the state is no good."""
        found = {name: point.values[name] for name, point in self._before.items() if _counts(point, step, at)}
        for point in self._points:
            if _counts(point, step, at):
                found.update(point.values)
        return found

    def _next(self, file: Any) -> bytes:
        file.seek(self._position)
        data: bytes = file.read(_READ_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole

    def _add(self, point: _Point) -> None:
        self._points.append(point)
        if len(self._points) > _MOST_POINTS:
            oldest = self._points.popleft()
            for name in oldest.values:
                self._before[name] = oldest


class _Point:
    __slots__ = ("at", "step", "values")

    def __init__(self, at: float, step: int | None, values: dict[str, float]) -> None:
        self.at, self.step, self.values = at, step, values


def _counts(point: _Point, step: int | None, at: float) -> bool:
    return point.at <= at if None in (step, point.step) else point.step <= step  # type: ignore[operator]


def _point(line: bytes) -> _Point | None:
    """None for an alert, for a note of a checkpoint, and for what a dying process has left."""
    try:
        said = json.loads(line)
        step = said.get("s")
        values = {str(name): float(value) for name, value in said["m"].items()}
        return _Point(float(said["t"]), None if step is None else int(step), values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
