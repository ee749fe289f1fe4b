"""Makes artifacts of what runs leave in their output folders, once they are over. A thread of its own, like the
archivist of logs: what is left to do is in the database alone, and doing it twice comes to the same.

Of nodes that share no folder with the server nothing is taken: their folder is gone with them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.agent import layout
from windlass.artifacts.locations import Ours, locate
from windlass.artifacts.paths import joined
from windlass.artifacts.service import ArtifactService
from windlass.controller.sweeper import Sweeper
from windlass.core.clock import Clock
from windlass.core.errors import Unavailable, WindlassError
from windlass.core.quantities import format_size
from windlass.core.storable import is_storable, storable_text
from windlass.db.database import Database
from windlass.experiments.artifacturis import load_run_uri
from windlass.runs import aftermath, store
from windlass.runs.aftermath import Outputs
from windlass.runs.store import Slots
from windlass.runs.types import EventKind

log = logging.getLogger(__name__)

MOST_FILES = 10_000
_OUTPUT = "model"  # of a run's folder; SM_MODEL_DIR


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    path: str  # within the folder, with slashes
    size_bytes: int
    changed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    kept: Sequence[OutputFile]
    left: Sequence[OutputFile]


def output_folder(log_dirs: Sequence[str]) -> str | None:
    """Of the run whose attempt has its nodes' folders there; None where the server cannot read them."""
    if not log_dirs or not os.path.isabs(log_dirs[0]):
        return None
    *_, run, attempts, _number, _node = ("", "", "", *Path(log_dirs[0]).parts)
    return str(Path(log_dirs[0]).parents[2] / _OUTPUT) if run and attempts == "attempts" else None


def decide_kept(found: Sequence[OutputFile], *, limit_bytes: int | None) -> Choice:
    """Small files first, so that one that is too large costs no other."""
    kept: list[OutputFile] = []
    left: list[OutputFile] = []
    size = 0
    for file in sorted(found, key=lambda file: (file.size_bytes, file.path)):
        fits = limit_bytes is None or size + file.size_bytes <= limit_bytes
        if fits and len(kept) < MOST_FILES:
            kept.append(file)
            size += file.size_bytes
        else:
            left.append(file)
    return Choice(kept=kept, left=left)


class OutputKeeper(Sweeper):
    def __init__(
        self,
        db: Database,
        artifacts: ArtifactService,
        clock: Clock,
        slots: Callable[[], Slots],
        *,
        limit_bytes: int | None,
    ) -> None:
        super().__init__("outputs of runs", "kept")
        self._db = db
        self._artifacts = artifacts
        self._clock = clock
        self._slots = slots
        self._limit_bytes = limit_bytes

    def sweep(self) -> None:
        """Keep all there is now. Raises Unavailable if the blobs or the database are away."""
        slots = self._slots()
        if slots is not None and not slots:
            return
        while not self._stopping.is_set():
            with self._db.read() as tx:
                waiting = aftermath.load_outputs(tx, slots)
            if not waiting:
                return
            for item in waiting:
                if self._stopping.is_set():
                    return
                self._keep_or_tell(item)

    def _keep_or_tell(self, item: Outputs) -> None:
        try:
            self._keep(item)
        except Unavailable:
            raise
        except Exception as error:
            # Its own trouble, which must not keep those after it waiting.
            log.exception("the output of attempt %s cannot be kept", item.attempt_id)
            self._conclude(item, (), f"artifacts: its output cannot be kept: {error}. It stays in {item.folder}")

    def _keep(self, item: Outputs) -> None:
        with self._db.read() as tx:
            uri = load_run_uri(tx, item.run_id)
        where = locate(uri) if uri else None
        found = [] if self._limit_bytes == 0 else list(scan(item.folder))
        choice = decide_kept(found, limit_bytes=self._limit_bytes)
        problems: list[str] = []
        if isinstance(where, Ours):
            for file in choice.kept:
                if self._stopping.is_set():
                    return
                if problem := self._keep_file(item.folder, file, joined(where.path, file.path)):
                    problems.append(f"{file.path}: {problem}")
        elif choice.kept:
            problems.append(f"artifacts of this run are kept at {uri}, which the server does not write to")
        told = describe_left(choice.left, problems, item.folder, self._limit_bytes)
        self._conclude(item, choice.left, told)

    def _conclude(self, item: Outputs, left: Sequence[OutputFile], told: str | None) -> None:
        number = int(item.attempt_id.rpartition(".")[2])
        data = {"kind": "artifacts", "files": len(left), "bytes": sum(file.size_bytes for file in left)}
        with self._db.write() as tx:
            if aftermath.mark_kept(tx, item.attempt_id) and told is not None:
                at, message = self._clock.now(), storable_text(told)
                store.record_event(tx, item.run_id, EventKind.ALERT, at=at, attempt=number, message=message, data=data)

    def _keep_file(self, folder: str, file: OutputFile, path: str) -> str | None:
        """What is wrong with it, if anything. One that is there already, by a keeper that died, is not read again."""
        if not is_storable(path):
            return "its name is no text"
        try:
            there = self._artifacts.find(path)
            if there is not None and there.size_bytes == file.size_bytes and (there.created_at or 0) > file.changed_at:
                return None
            fd = os.open(os.path.join(folder, file.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(fd, "rb") as stream:
                self._artifacts.put_stream(path, stream)
        except Unavailable:
            raise
        except (WindlassError, OSError) as error:
            return error.message if isinstance(error, WindlassError) else str(error)
        return None


def scan(folder: str) -> Iterator[OutputFile]:
    """Plain files; links lead to who knows where."""
    for above, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(above, name))]
        folders[:] = sorted(name for name in folders if name not in links and not name.startswith(layout.DRAFT))
        for name in sorted(names):
            path = os.path.join(above, name)
            try:
                found = os.lstat(path)
            except OSError:
                continue
            if os.path.isfile(path) and not os.path.islink(path):
                shown = os.path.relpath(path, folder).replace(os.sep, "/")
                yield OutputFile(path=shown, size_bytes=found.st_size, changed_at=found.st_mtime)


def describe_left(
    left: Sequence[OutputFile], problems: Sequence[str], folder: str, limit_bytes: int | None
) -> str | None:
    """For people; None if all is well."""
    said = []
    if left:
        size = format_size(sum(file.size_bytes for file in left))
        most = f"{MOST_FILES:,} files" if limit_bytes is None else f"artifacts.limit ({format_size(limit_bytes)})"
        said.append(f"{len(left):,} of its output files ({size}) are beyond {most}, such as {left[-1].path}")
    said += problems[:3]
    return f"artifacts: {'; '.join(said)}. They stay in {folder}" if said else None
