"""Sending one checkpoint's files to a store, as far as they are not there: `send_files`.

Broken off anywhere and begun again, it goes on with the first piece that is missing. What is sent is hashed on its way:
a file that is not what its manifest says does not become part of a checkpoint in the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from windlass.blobs.bucket import Bucket, Found
from windlass.blobs.stored import Piece, pieces_of
from windlass.core.manifest import PartFile
from windlass.job.checkpoint.folder import Damaged
from windlass.job.checkpoint.stores.throttle import Throttle

_THREADS = 4


class Vanished(Exception):
    """The files were removed before they could be opened; another checkpoint will do."""


def send_files(bucket: Bucket, name: str, folder: Path, files: Sequence[PartFile], throttle: Throttle) -> int:
    """How many bytes were sent. Raises Vanished, Damaged, or Unavailable while the store is away."""
    there = bucket.list(name)
    with _opened(folder, files) as fds, ThreadPoolExecutor(_THREADS) as pool:
        sending = [
            pool.submit(_send_file, bucket, name, file, fd, there, throttle)
            for file, fd in zip(files, fds, strict=True)
        ]
        try:
            return sum(future.result() for future in sending)
        finally:
            for future in sending:
                future.cancel()  # after the first trouble: the others would only add to it


@contextlib.contextmanager
def _opened(folder: Path, files: Sequence[PartFile]) -> Iterator[list[int]]:
    """All of them at once: what the run's own retention removes meanwhile stays readable."""
    fds: list[int] = []
    try:
        for file in files:
            try:
                fds.append(os.open(folder / file.name, os.O_RDONLY | os.O_CLOEXEC))
            except FileNotFoundError:
                raise Vanished(f"{folder.name} has no {file.name}") from None
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def _send_file(
    bucket: Bucket, name: str, file: PartFile, fd: int, there: Mapping[str, Found], throttle: Throttle
) -> int:
    digest, sent = hashlib.sha256(), 0
    if os.fstat(fd).st_size != file.size_bytes:
        raise Damaged(f"{file.name} is not as long as it was saved")
    for piece in pieces_of(file):
        data = os.pread(fd, piece.end - piece.start, piece.start)
        digest.update(data)
        if not _is_there(piece, there):
            throttle.wait(len(data))
            bucket.put(f"{name}/{piece.key}", data)
            sent += len(data)
        with contextlib.suppress(OSError):
            # It is read once: the page cache is for the training's data.
            os.posix_fadvise(fd, piece.start, len(data), os.POSIX_FADV_DONTNEED)
    if digest.hexdigest() != file.sha256:
        raise Damaged(f"the bytes of {file.name} are not those that were saved")
    return sent


def _is_there(piece: Piece, there: Mapping[str, Found]) -> bool:
    return piece.key in there and there[piece.key].size_bytes == piece.end - piece.start
