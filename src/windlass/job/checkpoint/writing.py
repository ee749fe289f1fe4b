"""Writing what lies in an arena to files: `Writer`. Hashing and writing go on at once, each by threads of its own.

One after the other, a thread that hashes leaves the disk idle: with both at once a save takes as long as the slower
one. Loads no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from windlass.core.manifest import PartFile
from windlass.job.checkpoint.disk import Disk

CHUNK = 8 << 20
_WRITERS = 4  # in flight at once: disks that are far away take their time for each
_MOST_HASHERS = 4  # faster than any one disk, where processors hash by instructions of their own
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A file to be: so many bytes of the arena."""

    name: str
    start: int
    size_bytes: int


class Writer:
    """Its threads live as long as it does. `local_ranks` share the machine, and have a writer each."""

    def __init__(self, disk: Disk, *, local_ranks: int = 1) -> None:
        self._disk = disk
        cores = len(os.sched_getaffinity(0))
        self.hashers = ThreadPoolExecutor(decide_hashers(cores, local_ranks))
        self._writers = ThreadPoolExecutor(_WRITERS)

    def write(self, folder: Path, images: Sequence[Image], arena: mmap.mmap) -> list[PartFile]:
        """When this returns they are on the disk; when it raises, nobody writes to them any more."""
        stop = threading.Event()
        with memoryview(arena) as memory, contextlib.ExitStack() as opened:
            fds = [self._open(folder / image.name, image.size_bytes, opened) for image in images]
            hashing = [self.hashers.submit(_hash, memory, image, stop) for image in images]
            try:
                finish(
                    [
                        self._writers.submit(self._write, fds[number], memory, images[number], at, stop)
                        for number, at in decide_order([image.size_bytes for image in images])
                    ]
                )
                finish([self._writers.submit(self._disk.sync, fd) for fd in fds])
                hashes = finish(hashing)
            finally:
                stop.set()
                wait(hashing)
        return [
            PartFile(name=image.name, size_bytes=image.size_bytes, sha256=found)
            for image, found in zip(images, hashes, strict=True)
        ]

    def _open(self, path: Path, size_bytes: int, opened: contextlib.ExitStack) -> int:
        fd = self._disk.create(path, direct=True)
        opened.callback(os.close, fd)
        self._disk.reserve(fd, size_bytes)
        return fd

    def _write(self, fd: int, memory: memoryview, image: Image, at: int, stop: threading.Event) -> None:
        if stop.is_set():
            return
        try:
            with memory[image.start + at : image.start + min(at + CHUNK, image.size_bytes)] as chunk:
                self._disk.write(fd, chunk, at)
        except BaseException:
            stop.set()
            raise


def decide_hashers(cores: int, local_ranks: int) -> int:
    """One for each core that the rank has for its own, if that is some: training comes first on all of them."""
    return max(1, min(_MOST_HASHERS, cores // max(1, local_ranks)))


def decide_order(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(file, offset) of each chunk. As many files in turns as there are writers: some file systems let only one write
    to a file at a time."""
    for first in range(0, len(sizes), _WRITERS):
        group = range(first, min(first + _WRITERS, len(sizes)))
        for at in range(0, max(sizes[number] for number in group), CHUNK):
            for number in group:
                if at < sizes[number]:
                    yield number, at


def finish(futures: Sequence[Future[Result]]) -> list[Result]:
    """What all of them come to. If one fails, the others are over as well when this raises."""
    wait(futures)
    return [future.result() for future in futures]


def _hash(memory: memoryview, image: Image, stop: threading.Event) -> str:
    digest = hashlib.sha256()
    for at in range(0, image.size_bytes, CHUNK):
        if stop.is_set():
            break
        with memory[image.start + at : image.start + min(at + CHUNK, image.size_bytes)] as chunk:
            digest.update(chunk)
    return digest.hexdigest()
