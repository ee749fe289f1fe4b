"""Reading a checkpoint's files, several at once, each hashed as it comes in and handed on: `read_files`.

Past the page cache, which would cost a copy of every byte, where threads enough wait for the disk; unless what is read
lies there already, or somebody will read it again. Loads no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from windlass.core.manifest import PartFile
from windlass.job.checkpoint.disk import BLOCK
from windlass.job.checkpoint.folder import Damaged, lost_is_damaged
from windlass.job.checkpoint.writing import finish

PIECE = 1 << 20  # what was hashed is still in the core's own cache when it is copied
# Files at once: while some wait for the disk, others are hashed.
_MOST_LANES = 16
# With fewer cores than that the kernel, which reads ahead, keeps a disk busier than threads that hash in between.
_CORES_FOR_A_DISK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """A file to be read. `is_read_again`: by others, or later; so it had better stay in the page cache."""

    file: PartFile
    is_read_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How to read. `past_cache`: what nobody reads again."""

    lanes: int
    past_cache: bool


def decide_way(files: int, cores: int, local_ranks: int) -> Way:
    """For one of so many ranks that share the machine."""
    mine = max(1, cores // max(1, local_ranks))
    # Of threads that read past the cache, more than cores, for they wait.
    past_cache = mine >= _CORES_FOR_A_DISK
    most = _MOST_LANES if past_cache else mine + 2
    return Way(lanes=max(1, min(files, most)), past_cache=past_cache)


class Lane(Protocol):
    """Where bytes go; of one thread."""

    def target(self, name: str, at: int) -> memoryview | None:
        """Where bytes of that file belong from `at` on, if they can be read to their place at once: PIECE at most."""

    def buffer(self) -> memoryview:
        """PIECE bytes to read into, from the beginning of a page. May wait for what was read into it before."""

    def place(self, name: str, at: int, count: int) -> None:
        """So many bytes of that file, from byte `at`, are in the last buffer."""


def read_files(folder: Path, intakes: Sequence[Intake], lanes: Sequence[Lane], *, past_cache: bool = True) -> None:
    """Damaged if one is not what was saved; lanes may have got some of it. When this returns or raises, nobody reads
    any more."""
    # The largest first: none of them is alone at the end.
    queue = iter(sorted(intakes, key=lambda intake: -intake.file.size_bytes))
    lock, stop = threading.Lock(), threading.Event()
    with ThreadPoolExecutor(len(lanes)) as pool:
        try:
            finish([pool.submit(_work, folder, queue, lane, past_cache, lock, stop) for lane in lanes])
        finally:
            stop.set()  # whoever waits here may be interrupted


def _work(
    folder: Path, queue: Iterator[Intake], lane: Lane, past_cache: bool, lock: threading.Lock, stop: threading.Event
) -> None:
    try:
        while not stop.is_set():
            with lock:
                intake = next(queue, None)
            if intake is None:
                return
            with lost_is_damaged(f"{folder.name}/{intake.file.name}"):
                found = _hashed(folder / intake.file.name, intake, lane, past_cache, stop)
            if found not in (None, intake.file.sha256):
                raise Damaged(f"the bytes of {folder.name}/{intake.file.name} are not those that were saved")
    except BaseException:
        stop.set()
        raise


def _hashed(path: Path, intake: Intake, lane: Lane, past_cache: bool, stop: threading.Event) -> str | None:
    """The hash of what was read; None if others have failed meanwhile."""
    digest, at, size = hashlib.sha256(), 0, intake.file.size_bytes
    source = _Source(path, direct=past_cache and not intake.is_read_again and not _is_cached(path, size))
    with contextlib.closing(source):
        while at < size and not stop.is_set():
            target = None if source.is_direct else lane.target(intake.file.name, at)  # of no certain place or size
            buffer = lane.buffer() if target is None else target
            count = source.read(buffer, at)
            if count == 0:
                break
            digest.update(buffer[:count])
            if target is None:
                lane.place(intake.file.name, at, count)
            at += count
    return None if stop.is_set() else digest.hexdigest()


class _Source:
    """A file that is read past the page cache where that can be."""

    def __init__(self, path: Path, *, direct: bool) -> None:
        self._path = path
        self._fd = -1
        self.is_direct = direct
        self._open()

    def read(self, buffer: memoryview, at: int) -> int:
        if self.is_direct and at % BLOCK:  # after less than was asked for
            self._reopen()
        try:
            return os.preadv(self._fd, [buffer], at)
        except OSError:
            if not self.is_direct:
                raise
            self._reopen()  # a file system that wants other sizes, or other memory; what is really wrong comes again
            return os.preadv(self._fd, [buffer], at)

    def close(self) -> None:
        os.close(self._fd)

    def _reopen(self) -> None:
        before, self.is_direct = self._fd, False
        self._open()
        os.close(before)  # now: if it cannot be opened again, `close` closes this one

    def _open(self) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC
        if self.is_direct:
            try:
                self._fd = os.open(self._path, flags | os.O_DIRECT)
                return
            except OSError:
                self.is_direct = False  # tmpfs and some network file systems refuse; else so does the next line
        self._fd = os.open(self._path, flags)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def _is_cached(path: Path, size_bytes: int) -> bool:
    """Whether the page cache has the middle of it: it was written or read a moment ago."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # what is not there is not to be brought
        return os.preadv(fd, [bytearray(1)], size_bytes // 2, os.RWF_NOWAIT) > 0
    except OSError:  # it is not, or the file system cannot tell
        return False
    finally:
        os.close(fd)
