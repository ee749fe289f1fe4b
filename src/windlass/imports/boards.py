"""Reads folders of TensorBoard's event files: every folder that has some is a run, as TensorBoard has it."""

from __future__ import annotations

import hashlib
import math
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from windlass.agent.eventfile import Damaged, began_at
from windlass.agent.tensorboard import read_file
from windlass.core.errors import InvalidInput
from windlass.imports.records import Experiment, File, LoggedModel, Owner, Point, RegisteredModel, Run

DAMAGED_TAG = "windlass.import.damaged"
_REFUSED = re.compile(r"[^/\w.\- :]")
_LONGEST_NAME = 250
_MOST_READ = 32  # folders whose points are kept in memory: more than are copied at a time


@dataclass(slots=True, kw_only=True)
class _Folder:
    points: dict[str, list[Point]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


class BoardSource:
    def __init__(self, folder: Path, experiment: str | None = None) -> None:
        """Raises InvalidInput for a folder without event files."""
        self._root = Path(os.path.abspath(folder.expanduser()))  # `..` is no name for an experiment
        if not self._root.is_dir():
            raise InvalidInput(
                f"there is no folder '{self._root}'", hint="give the one that `tensorboard --logdir` has"
            )
        self._name = experiment or self._root.name or "tensorboard"
        self._folders = sorted(
            Path(folder)
            for folder, _, names in os.walk(self._root)
            if any(began_at(name) is not None for name in names)
        )
        if not self._folders:
            raise InvalidInput(
                f"'{self._root}' has no event files of TensorBoard", hint="they are called events.out.tfevents.…"
            )
        self._read: OrderedDict[str, _Folder] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        return self._root.as_uri()

    def close(self) -> None:
        pass

    def is_windlass(self) -> bool:
        return False

    def experiments(self, *, deleted: bool) -> Iterator[Experiment]:
        del deleted
        yield Experiment(id="0", name=self._name)

    def runs(self, experiment: Experiment, *, deleted: bool) -> Iterator[Run]:
        del experiment, deleted
        for folder in self._folders:
            if (found := self._points_of(str(folder))).points:
                yield self._run(folder, found)

    def whole(self, run: Run) -> Run:
        return run

    def history(self, run: Run, key: str) -> Iterator[Point]:
        yield from self._points_of(run.files.place).points[key]

    def histories(self, run: Run) -> Iterator[tuple[str, Iterator[Point]]]:
        return ((key, self.history(run, key)) for key in run.metrics)

    def logged_models(self, experiment: Experiment) -> Iterator[LoggedModel]:
        del experiment
        yield from ()

    def registered_models(self) -> Iterator[RegisteredModel]:
        yield from ()

    def files(self, owner: Owner) -> Iterator[File]:
        del owner
        yield from ()

    def reading(self, owner: Owner, path: str) -> AbstractContextManager[Iterator[bytes]]:
        raise InvalidInput(f"{owner.kind} {owner.id} has no file '{path}'")

    def _run(self, folder: Path, found: _Folder) -> Run:
        times = [point.at_ms for points in found.points.values() for point in points]
        name = folder.relative_to(self._root).as_posix()
        # The same wherever the folder is moved to, and another one for another writer in a folder of the same name.
        first = min(file.name for file in folder.iterdir() if _is_event_file(file))
        run_id = hashlib.sha256(f"tensorboard {name} {first}".encode()).hexdigest()[:32]
        return Run(
            id=run_id,
            name=self._root.name if name == "." else name,
            start_ms=min(times),
            end_ms=max(times),
            metrics={key: max(points) for key, points in found.points.items()},
            tags={DAMAGED_TAG: ", ".join(found.damaged)} if found.damaged else {},
            files=Owner("run", run_id, str(folder)),
        )

    def _points_of(self, folder: str) -> _Folder:
        with self._lock:
            if folder in self._read:
                self._read.move_to_end(folder)
                return self._read[folder]
        found = _read_folder(Path(folder))
        with self._lock:
            self._read[folder] = found
            while len(self._read) > _MOST_READ:
                self._read.popitem(last=False)
        return found


def _read_folder(folder: Path) -> _Folder:
    found = _Folder()
    names = _Names()
    for file in sorted(one for one in folder.iterdir() if _is_event_file(one)):
        try:
            for scalars, _ in read_file(str(file), 0, math.inf):
                if scalars is None:
                    continue
                for tag, value in scalars.values:
                    point = Point(scalars.step, max(0, round(scalars.at * 1000)), value)
                    found.points.setdefault(names.of(tag), []).append(point)
        except Damaged:
            found.damaged.append(file.name)
    return found


class _Names:
    """Tags as MLflow's API takes them: other characters become `_`, and two tags stay two."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, tag: str) -> str:
        if tag not in self._names:
            self._names[tag] = self._name(tag)
            self._taken.add(self._names[tag])
        return self._names[tag]

    def _name(self, tag: str) -> str:
        parts = [part for part in _REFUSED.sub("_", tag).split("/") if part not in ("", ".", "..")]
        plain = "/".join(parts)[:_LONGEST_NAME] or "_"
        others = (f"{plain[: _LONGEST_NAME - 6]}_{number}" for number in count(2))
        return next(name for name in chain([plain], others) if name not in self._taken)


def _is_event_file(file: Path) -> bool:
    return began_at(file.name) is not None and file.is_file()
