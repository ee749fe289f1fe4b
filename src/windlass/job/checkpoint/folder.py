"""The folder of a run's checkpoints: what its names mean, what is in it, and how things leave it.

    step-0000000100/             a checkpoint: its files and manifest.json
    .step-0000000100-1f2e3d4c/   a save that goes on, or whose process is dead
    .fetch-step-...              one that is being brought from a store
    .part-step-...               this node's part of one, where nodes share no folder
    .bad-step-...                found to be damaged
    .trash-...                   on its way out

A checkpoint appears and disappears by one rename each. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from windlass.core.manifest import (
    MANIFEST,
    NEWER_HINT,
    InvalidManifest,
    Manifest,
    NewerManifest,
    PartFile,
    folder_name,
    parse_manifest,
    step_of_folder,
)
from windlass.job.checkpoint.disk import Disk

METADATA = ".metadata"
OWN_FOLDER = "folder=job.session().checkpoint_dir"  # as a script says it; each run has another
_SAVING, _BAD, _TRASH = ".step-", ".bad-", ".trash-"
_FETCHING, _PART = ".fetch-", ".part-"
PROBE = ".probe-"  # a file by which ranks find out who sees the same folder
# The newest of the damaged ones is left for so long if no other one was good: something may be saved of it by hand.
_SALVAGED_S = 86_400.0
_HASHED_AT_ONCE = 4
_CHUNK = 1 << 20  # what is hashed is still in the core's own cache then
# Nothing was written to it for so long: its savers are gone. Should one come back, its folder is gone and it fails.
_DEAD_AFTER_S = 900.0
# What a disk or a file system says that has not got the bytes any more. Other errors, such as a permission that is
# missing, say nothing of the bytes.
_LOST = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.ENOENT, errno.ESTALE})


class Damaged(Exception):
    """A checkpoint's file is not what its manifest says."""


@contextlib.contextmanager
def lost_is_damaged(name: str) -> Iterator[None]:
    """For reading the file of that name: Damaged if its bytes are lost."""
    try:
        yield
    except OSError as error:
        if error.errno not in _LOST:
            raise
        raise Damaged(f"{name} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint that can be seen."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """How many steps were done when it was saved."""
        return self.manifest.step


def saving_name(step: int, save_id: str) -> str:
    return f".{folder_name(step)}-{save_id}"


def fetching_name(stored: str) -> str:
    return f"{_FETCHING}{stored}"


def part_folder_name(stored: str) -> str:
    return f"{_PART}{stored}"


def stored_name_of_part(path: Path) -> str:
    return path.name.removeprefix(_PART)


def make_folder(folder: Path) -> str | None:
    """Why it cannot be there; a disk that is full now may have room when something is saved."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return None if error.errno == errno.ENOSPC else str(error)
    return None


def list_saved(folder: Path) -> list[Saved]:
    """Newest first. A folder without a manifest is no checkpoint; of one whose manifest is no good `unreadable` tells,
    and of those of a newer Windlass `by_newer`."""
    return _with_manifest(path for path in _children(folder) if step_of_folder(path.name) is not None)


def saved_by(run_id: str | None, found: Iterable[Saved]) -> list[Saved]:
    """Those of that run, which alone it may remove: a folder that was named by hand may have others' as well."""
    return [saved for saved in found if saved.manifest.run_id == run_id]


def whose(saved: Saved) -> str:
    run_id = saved.manifest.run_id
    return f"run {run_id}" if run_id is not None else "a program outside of runs"


def saved_at(path: Path) -> Saved | None:
    """The checkpoint in that folder, if it is one that can be read."""
    return next(iter(_with_manifest([path])), None)


def list_parts(folder: Path) -> list[Saved]:
    """This node's parts of checkpoints, newest first."""
    return _with_manifest(path for path in _children(folder) if path.name.startswith(_PART))


def _with_manifest(paths: Iterable[Path]) -> list[Saved]:
    found = []
    for path in sorted(paths, reverse=True):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, InvalidManifest):
            found.append(Saved(path=path, manifest=_read_manifest(path)))
    return found


def unreadable(folder: Path) -> dict[Path, str]:
    """Folders that have the name of a checkpoint and a manifest that is none, or another's, and what is wrong."""
    refused = _refused(folder)
    return {path: error.message for path, error in refused.items() if not isinstance(error, NewerManifest)}


def by_newer(folder: Path) -> list[Path]:
    """Checkpoints that a newer Windlass has saved, newest first. They are left as they are."""
    refused = _refused(folder)
    return sorted((path for path, error in refused.items() if isinstance(error, NewerManifest)), reverse=True)


def refuse_newer(paths: Iterable[Path], *, than: int) -> None:
    """`paths`: `by_newer`. Raises NewerManifest if one is newer than that step: who went on from an older one would do
    again what is done, and not know it."""
    for path in paths:
        if (step_of_folder(path.name) or 0) > than:
            raise NewerManifest(f"{path} was saved by a newer version of Windlass", hint=NEWER_HINT)


def _refused(folder: Path) -> dict[Path, InvalidManifest]:
    found = {}
    for path in _children(folder):
        if step_of_folder(path.name) is not None:
            try:
                _read_manifest(path)
            except InvalidManifest as error:
                found[path] = error
            except OSError:
                continue
    return found


def _read_manifest(path: Path) -> Manifest:
    return parse_manifest((path / MANIFEST).read_bytes(), name=path.name)


def check_sizes(saved: Saved) -> None:
    for file in saved.manifest.files:
        with lost_is_damaged(f"{saved.path.name}/{file.name}"):
            try:
                size = (saved.path / file.name).stat().st_size
            except FileNotFoundError:
                raise Damaged(f"{saved.path.name} has no {file.name}") from None
        if size != file.size_bytes:
            raise Damaged(f"{saved.path.name}/{file.name} has {size} bytes, and was saved with {file.size_bytes}")


def check_hashes(saved: Saved) -> None:
    """Read all files and compare; Damaged for the first that differs."""
    files = saved.manifest.files

    def hashed(file: PartFile) -> str:
        with lost_is_damaged(f"{saved.path.name}/{file.name}"):
            return hash_file(saved.path / file.name)

    with ThreadPoolExecutor(_HASHED_AT_ONCE) as pool:
        for file, found in zip(files, pool.map(hashed, files), strict=True):
            if found != file.sha256:
                raise Damaged(f"the bytes of {saved.path.name}/{file.name} are not those that were saved")


def hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def set_aside(path: Path, disk: Disk) -> None:
    """Out of sight, to be looked at until the next garbage collection, or for a day if there is no other one. One that
    is gone already is fine."""
    with contextlib.suppress(OSError):
        os.utime(path)  # since when it is aside
    with contextlib.suppress(FileNotFoundError):
        disk.rename(path, path.with_name(f"{_BAD}{path.name}-{secrets.token_hex(4)}"))


def list_set_aside(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in _children(folder) if path.name.startswith(_BAD)), reverse=True)


def discard(path: Path, disk: Disk) -> None:
    """Invisible first, and whole until then; whoever else wanted to rename it has lost."""
    trash = path.with_name(f"{_TRASH}{path.name.lstrip('.')}-{secrets.token_hex(4)}")
    try:
        disk.rename(path, trash)
    except FileNotFoundError:
        return
    disk.sync_dir(path.parent)
    disk.remove_dir(trash)


def collect_garbage(folder: Path, disk: Disk, *, sparing: Path | None = None, now: float | None = None) -> None:
    """Remove what dead processes left. Call it when a newer checkpoint is there: damaged ones go now as well, but for
    the newest where nothing that was saved before is left."""
    now = time.time() if now is None else now
    salvaged = _to_salvage(folder, now)
    for path in _children(folder):
        if path == sparing:
            continue
        if path.name.startswith(_TRASH):
            disk.remove_dir(path)
        elif path.name.startswith(PROBE):
            if now - _modified(path, now) > _DEAD_AFTER_S:
                disk.remove(path)
        elif path.name.startswith(_BAD):
            if path != salvaged:
                discard(path, disk)
        elif path.name.startswith((_SAVING, _FETCHING)) and _is_dead(path, now):
            discard(path, disk)


def _to_salvage(folder: Path, now: float) -> Path | None:
    newest = next(iter(list_set_aside(folder)), None)
    if newest is None:
        return None
    since = _modified(newest, now)
    has_older = any(saved.manifest.created_at < since for saved in list_saved(folder))
    return None if has_older or now - since > _SALVAGED_S else newest


def _modified(path: Path, now: float) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return now


def _is_dead(path: Path, now: float) -> bool:
    try:
        times = [path.stat().st_mtime, *(entry.stat().st_mtime for entry in path.iterdir())]
    except FileNotFoundError:
        return False  # it has just become a checkpoint, or is being removed
    return now - max(times) > _DEAD_AFTER_S


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
