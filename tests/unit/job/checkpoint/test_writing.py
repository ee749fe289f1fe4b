"""Hashing and writing at once: what is on the disk is what is in the arena, and nobody writes after a failure."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from windlass.job.checkpoint.disk import BLOCK, Disk
from windlass.job.checkpoint.writing import CHUNK, Image, Writer, decide_hashers, decide_order


def arena_of(sizes: Sequence[int]) -> tuple[mmap.mmap, list[Image]]:
    arena = mmap.mmap(-1, sum(sizes))
    arena[:] = os.urandom(sum(sizes))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return arena, [
        Image(name=f"file-{number}", start=start, size_bytes=size)
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


def test_files_are_what_lies_in_the_arena(tmp_path: Path) -> None:
    arena, images = arena_of([BLOCK, 2 * CHUNK, CHUNK + BLOCK, 3 * BLOCK, CHUNK, 2 * CHUNK + BLOCK])
    files = Writer(Disk()).write(tmp_path, images, arena)
    assert [(file.name, file.size_bytes) for file in files] == [(image.name, image.size_bytes) for image in images]
    for file, image in zip(files, images, strict=True):
        content = (tmp_path / file.name).read_bytes()
        assert content == arena[image.start : image.start + image.size_bytes]
        assert file.sha256 == hashlib.sha256(content).hexdigest()


class FailingDisk(Disk):
    """Has a bad spot; and counts who is at work."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.at_work = 0

    def write(self, fd: int, data: memoryview, offset: int) -> None:
        with self.lock:
            self.at_work += 1
        try:
            if offset == CHUNK:
                raise OSError(errno.EIO, "Input/output error")
            super().write(fd, data, offset)
        finally:
            with self.lock:
                self.at_work -= 1


def test_nobody_writes_any_more_when_one_has_failed(tmp_path: Path) -> None:
    arena, images = arena_of([4 * CHUNK, 4 * CHUNK])
    disk = FailingDisk()
    writer = Writer(disk)
    with pytest.raises(OSError, match="Input/output error"):
        writer.write(tmp_path, images, arena)
    assert disk.at_work == 0
    opened = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)}
    assert not [path for path in opened if path.startswith(str(tmp_path))]
    arena[:] = bytes(len(arena))  # and nobody reads
    (good,) = writer.write(tmp_path, [Image(name="next", start=0, size_bytes=CHUNK)], arena)  # the next save may do
    assert good.sha256 == hashlib.sha256(bytes(CHUNK)).hexdigest()


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


@pytest.mark.parametrize(
    "sizes", [[], [BLOCK], [5 * CHUNK + BLOCK], [CHUNK, 3 * CHUNK, 1, 2 * CHUNK, CHUNK, 9 * CHUNK]]
)
def test_every_chunk_is_written_once(sizes: list[int]) -> None:
    order = list(decide_order(sizes))
    assert sorted(order) == [(number, at) for number, size in enumerate(sizes) for at in range(0, size, CHUNK)]


def test_files_take_turns() -> None:
    assert [number for number, _ in decide_order([2 * CHUNK] * 5)] == [0, 1, 2, 3, 0, 1, 2, 3, 4, 4]


@pytest.mark.parametrize(
    ("cores", "ranks", "hashers"), [(2, 1, 2), (16, 1, 4), (16, 8, 2), (2, 4, 1), (1, 1, 1), (192, 8, 4)]
)
def test_hashers_share_the_machine(cores: int, ranks: int, hashers: int) -> None:
    assert decide_hashers(cores, ranks) == hashers
