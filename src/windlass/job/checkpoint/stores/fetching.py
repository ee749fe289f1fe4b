"""Bringing a checkpoint back from a store, file by file: `fetch_files`, then `show`.

Into a folder beside the checkpoints whose name says which one, so that whoever comes next goes on there. A file gets
its own name when its bytes are known to be right.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from windlass.blobs.bucket import Bucket
from windlass.blobs.stored import Piece, Stored, pieces_in
from windlass.core.errors import NotFound
from windlass.core.integrity import path_of
from windlass.core.manifest import MANIFEST, PartFile, folder_name, render_manifest
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import Damaged, by_newer, discard, fetching_name, hash_file

_THREADS = 4
_PARTIAL = ".partial"


def fetch_files(
    bucket: Bucket, stored: Stored, files: Sequence[PartFile], folder: Path, disk: Disk, *, near: Sequence[Path] = ()
) -> int:
    """How many bytes came over. `near`: folders that may have some of the files already.

    Raises Damaged if the store does not have what the manifest says, Unavailable while it is away, OSError.
    """
    target = folder / fetching_name(stored.name)
    disk.make_dir(target)
    missing = [file for file in files if not _is_here(target, file)]
    listing = bucket.list(stored.name) if missing else {}
    with ThreadPoolExecutor(_THREADS) as pool:
        coming = []
        for file in missing:
            pieces = pieces_in(listing, file)
            if pieces is None:
                raise Damaged(f"{bucket.at(stored.name)}: {file.name} is not whole")
            coming.append(pool.submit(_fetch, bucket, stored.name, file, pieces, target, disk, near))
        try:
            return sum(future.result() for future in coming)
        finally:
            for future in coming:
                future.cancel()


def show(stored: Stored, folder: Path, disk: Disk) -> Path:
    """Make a checkpoint of what was fetched. All of its files are here."""
    target, final = folder / fetching_name(stored.name), folder / folder_name(stored.manifest.step)
    disk.sync_dirs(target)
    disk.write_file(target / MANIFEST, render_manifest(stored.manifest).encode())
    disk.sync_dir(target)
    if final in by_newer(folder):
        discard(target, disk)  # the same step of the same run, as a newer Windlass has it
        return final
    if final.exists():
        discard(final, disk)  # damaged, or no checkpoint at all: else this one would not have been fetched
    disk.rename(target, final)
    disk.sync_dir(folder)
    return final


def _is_here(target: Path, file: PartFile) -> bool:
    """Its name is proof enough that the bytes are right; `find_good` hashes them once more."""
    try:
        return path_of(target, file).stat().st_size == file.size_bytes
    except FileNotFoundError:
        return False


def _fetch(
    bucket: Bucket, name: str, file: PartFile, pieces: Sequence[Piece], target: Path, disk: Disk, near: Sequence[Path]
) -> int:
    final = path_of(target, file)
    partial = final.with_name(final.name + _PARTIAL)
    if final.parent != target:
        disk.make_dir(final.parent)
    if any(_take(folder / file.name, partial, file) for folder in near):
        disk.rename(partial, final)
        return 0
    came = 0
    for _ in range(2):  # what an earlier life left may be wrong: then once more, from the beginning
        came += _complete(bucket, name, file, pieces, partial, disk)
        if hash_file(partial) == file.sha256:
            disk.rename(partial, final)
            return came
        disk.remove(partial)
    raise Damaged(f"{bucket.at(name)}: the bytes of {file.name} are not those that were saved")


def _complete(bucket: Bucket, name: str, file: PartFile, pieces: Sequence[Piece], partial: Path, disk: Disk) -> int:
    fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    came = 0
    try:
        here = os.fstat(fd).st_size  # written in order, so all before it is here
        for piece in pieces:
            if piece.end <= here:
                continue
            try:
                data = bucket.get(f"{name}/{piece.key}")
            except NotFound:
                raise Damaged(f"{bucket.at(name)}: {file.name} is not whole any more") from None
            if len(data) != piece.end - piece.start:
                raise Damaged(f"{bucket.at(name)}: {piece.key} has changed while it was read")
            disk.write(fd, memoryview(data), piece.start)
            came += len(data)
        os.ftruncate(fd, file.size_bytes)
        disk.sync(fd)
    finally:
        os.close(fd)
    return came


def _take(source: Path, partial: Path, file: PartFile) -> bool:
    """A file of our own that is the one that is wanted: the same bytes under a second name."""
    with contextlib.suppress(OSError):
        if source.stat().st_size == file.size_bytes and hash_file(source) == file.sha256:
            partial.unlink(missing_ok=True)
            os.link(source, partial)
            return True
    return False
