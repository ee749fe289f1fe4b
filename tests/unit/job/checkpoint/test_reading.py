"""Reading and hashing at once: every byte is handed on once, damage is found, and nobody reads after it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from windlass.core.manifest import PartFile
from windlass.job.checkpoint import reading
from windlass.job.checkpoint.folder import Damaged
from windlass.job.checkpoint.reading import PIECE, Intake, Way, decide_way, read_files


class Collector:
    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, PIECE)
        self.got: dict[str, bytearray] = {}

    def target(self, name: str, at: int) -> memoryview | None:  # noqa: ARG002
        return None

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


def failing(number: int) -> Any:
    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    return fail


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


class Knower(Collector):
    """Has places for some of the bytes, of odd sizes."""

    def __init__(self, files: Sequence[PartFile]) -> None:
        super().__init__()
        self.places = {file.name: bytearray(file.size_bytes) for file in files}
        self.asked = 0

    def target(self, name: str, at: int) -> memoryview | None:
        self.asked += 1
        return memoryview(self.places[name])[at : at + 1001] if at // 1000 % 2 == 0 else None

    def place(self, name: str, at: int, count: int) -> None:
        self.places[name][at : at + count] = self.memory[:count]


@pytest.mark.parametrize("past_cache", [True, False])
def test_bytes_come_to_places_that_are_known(past_cache: bool, tmp_path: Path) -> None:
    files = saved(tmp_path, [1001, PIECE + 1234])
    forget(tmp_path)
    knower = Knower(files)
    read_files(tmp_path, [Intake(file=file) for file in files], [knower], past_cache=past_cache)
    assert knower.places == {file.name: (tmp_path / file.name).read_bytes() for file in files}
    if not past_cache:
        assert knower.asked > len(files)


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


def test_a_file_that_is_gone_is_damaged(tmp_path: Path) -> None:
    files = saved(tmp_path, [PIECE])
    (tmp_path / "file-0").unlink()
    with pytest.raises(Damaged, match=r"/file-0 cannot be read: .*No such file"):
        read_files(tmp_path, [Intake(file=file) for file in files], [Collector()])


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.ESTALE])
def test_what_the_disk_cannot_read_is_damaged(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = saved(tmp_path, [PIECE])
    monkeypatch.setattr(os, "preadv", failing(number))
    with pytest.raises(Damaged, match="/file-0 cannot be read: "):
        read_files(tmp_path, [Intake(file=file) for file in files], [Collector()])


def test_what_may_not_be_read_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = saved(tmp_path, [PIECE])
    monkeypatch.setattr(os, "preadv", failing(errno.EACCES))
    with pytest.raises(PermissionError):
        read_files(tmp_path, [Intake(file=file) for file in files], [Collector()])


def test_a_file_system_that_refuses_only_past_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, preadv = saved(tmp_path, [2 * PIECE + 17]), os.preadv

    def refuse(fd: int, buffers: Any, at: int, flags: int = 0) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(fd, buffers, at, flags)

    forget(tmp_path)
    monkeypatch.setattr(os, "preadv", refuse)
    collector = Collector()
    read_files(tmp_path, [Intake(file=file) for file in files], [collector])
    assert collector.got == {"file-0": (tmp_path / "file-0").read_bytes()}


class Counter(Collector):
    """Goes on from its first piece when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.begun, self.go_on = 0, threading.Event(), threading.Event()

    def place(self, name: str, at: int, count: int) -> None:  # noqa: ARG002
        self.count += count
        self.begun.set()
        assert self.go_on.wait(60)


def test_whoever_is_interrupted_leaves_nobody_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, lane = PartFile(name="huge", size_bytes=4 << 30, sha256=""), Counter()
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", file.size_bytes)

    def interrupted(_: Any) -> None:
        assert lane.begun.wait(60)
        lane.go_on.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(reading, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_files(tmp_path, [Intake(file=file)], [lane])
    assert lane.count < file.size_bytes


def test_nothing_to_read(tmp_path: Path) -> None:
    read_files(tmp_path, [], [Collector()])


@pytest.mark.parametrize(
    ("files", "cores", "local_ranks", "way"),
    [
        (20, 64, 4, Way(lanes=16, past_cache=True)),
        (10, 64, 4, Way(lanes=10, past_cache=True)),
        (20, 64, 16, Way(lanes=6, past_cache=False)),
        (20, 2, 1, Way(lanes=4, past_cache=False)),
        (20, 2, 4, Way(lanes=3, past_cache=False)),
        (1, 2, 0, Way(lanes=1, past_cache=False)),
        (0, 2, 1, Way(lanes=1, past_cache=False)),
    ],
)
def test_few_cores_leave_it_to_the_kernel_to_read_ahead(files: int, cores: int, local_ranks: int, way: Way) -> None:
    assert decide_way(files, cores, local_ranks) == way
