"""Saves that must not be left out, on a disk that is full: what makes room for them, and what is said if none is."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.unit.job.checkpoint.meeting import Meeting, ThreadPeers  # noqa: E402
from windlass.job.checkpoint import saving  # noqa: E402
from windlass.job.checkpoint.checkpoints import Checkpoints, checkpoints  # noqa: E402
from windlass.job.checkpoint.disk import Disk  # noqa: E402
from windlass.job.checkpoint.folder import list_saved  # noqa: E402
from windlass.job.checkpoint.retention import Keep  # noqa: E402
from windlass.job.checkpoint.saver import Order, Saver  # noqa: E402

pytestmark = pytest.mark.torch


class SmallDisk(Disk):
    """`room`: for so many saves of the model below."""

    room = 100

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def reserve(self, fd: int, size: int) -> None:
        kept = [path for path in self._folder.rglob("__*") if path.stat().st_size]
        if len(kept) >= self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().reserve(fd, size)


class Within:
    """A saver in this process."""

    is_busy, is_alive = False, True

    def __init__(self, folder: Path) -> None:
        self._saver = Saver(SmallDisk(folder))

    def give_arena(self, arena: Any, metadata: bytes, number: int = 0) -> None:
        self._saver.use_arena(os.dup(arena.fd), metadata, number)

    def give_order(self, order: Order) -> None:
        self._answer = self._saver.save(order)
        self.is_busy = True

    def answer(self, _: float | None = 0.0) -> dict[str, Any]:
        self.is_busy = False
        return self._answer

    def close(self, *, wait_s: float | None) -> None: ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(saving, "Companion", lambda *_: Within(tmp_path))
    monkeypatch.setattr(SmallDisk, "room", 100)
    return tmp_path


def opened(folder: Path, **options: Any) -> Checkpoints:
    return checkpoints(model=nn.Linear(3, 3), folder=folder, **{"every": 1, **options})


def there(folder: Path) -> list[int]:
    return [saved.manifest.step for saved in list_saved(folder)]


def test_older_ones_make_room_for_the_last(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(folder, keep=Keep(last=5, best="loss")) as ckpt:
        for step, loss in enumerate([5.0, 1.0, 3.0, 4.0], start=1):
            ckpt.step(step, loss=loss)
            ckpt.wait()
        SmallDisk.room = 4
        (folder / ".bad-step-7").mkdir()
        ckpt.step(5, loss=9.0)  # by its interval: it is left out, and no other one goes for it
        ckpt.wait()
        assert there(folder) == [4, 3, 2, 1]
    assert there(folder) == [5, 4, 2]  # the newest before, and the best
    told = capsys.readouterr().err
    assert "the disk is full: .bad-step-7, step-0000000001, step-0000000003 had to go for this step" in told
    assert "is not saved" not in told


def test_saves_by_the_interval_go_on_where_a_disk_is_too_small_for_all(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SmallDisk.room = 5
    with opened(folder, every=10, keep=Keep(last=5, best="loss", every_steps=20)) as ckpt:
        lost = []
        for step in range(1, 151):
            ckpt.step(step, loss=abs(step - 30.0))
            ckpt.wait()
            lost.append(step - max(there(folder), default=0))
        # Best, and for ever: 30, 20, 40. One that fails, and the next one makes room.
        assert there(folder)[-3:] == [40, 30, 20]
    assert max(lost) < 20
    told = capsys.readouterr().err
    assert "the disk is full: step-0000000010 had to go for this step" in told


def test_of_two_ranks_the_first_makes_room_for_saves_by_the_interval(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = threading.local()
    monkeypatch.setattr("windlass.job.checkpoint.checkpoints.Peers", lambda: mine.peers)
    SmallDisk.room = 7  # three of two files

    def alone(peers: ThreadPeers) -> int:
        mine.peers = peers
        with opened(folder, every=10) as ckpt:
            for step in range(1, 96):
                ckpt.step(step)
                ckpt.wait()
            peers.gather(None)
            newest = there(folder)[0]
            peers.gather(None)
        return newest

    first, second = Meeting(2).run(alone)
    assert first == second >= 80


def test_who_asks_for_a_save_is_told_whether_it_is_safe(folder: Path) -> None:
    with opened(folder, every=100) as ckpt:
        ckpt.step(1)
        assert ckpt.save()
        assert ckpt.save()  # it is there
        SmallDisk.room = 1
        ckpt.step(2)
        assert not ckpt.save()
        assert there(folder) == [1]
        SmallDisk.room = 2
        assert ckpt.save()


@pytest.mark.parametrize("every", [1, 100])  # the last step's save may have failed before, by its interval
def test_training_that_ends_unsaved_says_so(every: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(folder, every=every) as ckpt:
        ckpt.step(1)
        assert ckpt.save()
        SmallDisk.room = 1
        ckpt.step(2)
        ckpt.step(3)
    assert there(folder) == [1]
    text = (
        f"checkpoint-unsaved: step 3, the last one, is not saved: the newest checkpoint in {folder} is that of step 1"
    )
    assert text in capsys.readouterr().err


def test_a_warning_stops_also_if_nothing_can_be_saved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(folder, every=100) as ckpt:
        SmallDisk.room = 0
        ckpt.step(1)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit, match="143"):
            ckpt.step(2)
    assert f"step 2, the last one, is not saved: the newest checkpoint in {folder} is none" in capsys.readouterr().err


def test_ranks_are_of_one_mind_when_one_of_them_has_no_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = threading.local()
    monkeypatch.setattr("windlass.job.checkpoint.checkpoints.Peers", lambda: mine.peers)

    def alone(peers: ThreadPeers) -> list[bool]:
        mine.peers = peers
        with opened(folder, every=100) as ckpt:
            ckpt.step(1)
            said = [ckpt.save()]
            ckpt.step(2)
            if peers.rank == 1:
                ckpt._snapshots._saving._companion._saver._disk.room = 0  # type: ignore[attr-defined]
            return [*said, ckpt.save()]

    assert Meeting(2).run(alone) == [[True, False]] * 2
    assert [path.name for path in folder.iterdir()] == ["step-0000000001"]
    assert capsys.readouterr().err.count("checkpoint-failed: nothing was saved: rank 1 could not write its part") == 2
