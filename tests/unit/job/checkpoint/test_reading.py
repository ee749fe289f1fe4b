"""Reading and hashing at once: every byte is handed on once, damage is found, and nobody reads after it."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from windlass.core.manifest import PartFile
from windlass.job.checkpoint.folder import Damaged
from windlass.job.checkpoint.reading import PIECE, Intake, read_files


class Collector:
    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, PIECE)
        self.got: dict[str, bytearray] = {}

    def buffer(self) -> memoryview:
        return memoryview(self.memory)

    def place(self, name: str, at: int, count: int) -> None:
        content = self.got.setdefault(name, bytearray())
        assert len(content) == at
        content += self.memory[:count]


def saved(folder: Path, sizes: Sequence[int]) -> list[PartFile]:
    files = []
    for number, size in enumerate(sizes):
        content = os.urandom(size)
        (folder / f"file-{number}").write_bytes(content)
        files.append(PartFile(name=f"file-{number}", size_bytes=size, sha256=hashlib.sha256(content).hexdigest()))
    return files


def forget(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("is_cold", [True, False])
@pytest.mark.parametrize("is_read_again", [True, False])
@pytest.mark.parametrize("lanes", [1, 3])
def test_all_bytes_are_handed_on(is_cold: bool, is_read_again: bool, lanes: int, tmp_path: Path) -> None:
    files = saved(tmp_path, [4096, PIECE, PIECE + 4096, 2 * PIECE + 17, 1, 0])  # not all are ours: any size will do
    if is_cold:
        forget(tmp_path)
    collectors = [Collector() for _ in range(lanes)]
    read_files(tmp_path, [Intake(file=file, is_read_again=is_read_again) for file in files], collectors)
    got = {name: content for collector in collectors for name, content in collector.got.items()}
    assert got == {file.name: (tmp_path / file.name).read_bytes() for file in files if file.size_bytes}


@pytest.mark.parametrize("at", [0, PIECE, 2 * PIECE + 16])
def test_a_bit_that_is_wrong_is_found(at: int, tmp_path: Path) -> None:
    files = saved(tmp_path, [PIECE, 2 * PIECE + 17])
    with (tmp_path / "file-1").open("r+b") as file:
        file.seek(at)
        (wrong,) = file.read(1)
        file.seek(at)
        file.write(bytes([wrong ^ 1]))
    forget(tmp_path)
    with pytest.raises(Damaged, match=r"the bytes of .*/file-1 are not those that were saved"):
        read_files(tmp_path, [Intake(file=file) for file in files], [Collector(), Collector()])


def test_a_file_that_is_shorter_is_damaged(tmp_path: Path) -> None:
    files = saved(tmp_path, [2 * PIECE])
    os.truncate(tmp_path / "file-0", PIECE + 5)
    with pytest.raises(Damaged):
        read_files(tmp_path, [Intake(file=file) for file in files], [Collector()])


def test_nothing_to_read(tmp_path: Path) -> None:
    read_files(tmp_path, [], [Collector()])
