"""A certain notice reaches the supervisor, whatever the disk does."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.agent import kernel, layout, spot
from windlass.agent.files import read_json, write_json
from windlass.agent.spot import Warned

CERTAIN = Warned("AWS will terminate this spot instance", 1_120.0, True)
ENVIRON = {spot.CLOUD: "aws", spot.EVERY: "0"}


class Disk:
    """Full for the next writes of these files."""

    def __init__(self) -> None:
        self.full_for: list[str] = []

    def write_json(self, path: str, value: Any) -> None:
        if os.path.basename(path) in self.full_for:
            self.full_for.remove(os.path.basename(path))
            raise OSError(errno.ENOSPC, "No space left on device")
        write_json(path, value)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(spot, "write_json", disk.write_json)
    monkeypatch.setattr(spot, "ask", lambda _environ: CERTAIN)
    return disk


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        found = kernel.stat(process.pid)
        assert found is not None
        write_json(str(tmp_path / layout.STATUS), {"pid": process.pid, "pid_start": found.start})
        write_json(str(tmp_path / layout.PLAN), {"grace_s": 20.0})
        try:
            yield process
        finally:
            process.kill()


def assert_told(supervisor: subprocess.Popen[bytes]) -> None:
    assert supervisor.wait(30) == -signal.SIGTERM


def test_the_supervisor_is_told_before_the_server(
    tmp_path: Path, disk: Disk, supervisor: subprocess.Popen[bytes]
) -> None:
    disk.full_for = [layout.NOTICE]
    with pytest.raises(OSError, match="No space"):
        spot.act_on(CERTAIN, str(tmp_path), now=1_000.0)
    assert_told(supervisor)
    assert read_json(str(tmp_path / layout.STOP)) == {"kind": "preempted", "reason": CERTAIN.message, "grace_s": 20.0}


def test_it_is_told_though_the_wish_cannot_be_written(
    tmp_path: Path, disk: Disk, supervisor: subprocess.Popen[bytes]
) -> None:
    disk.full_for = [layout.STOP]
    with pytest.raises(OSError, match="No space"):
        spot.act_on(CERTAIN, str(tmp_path), now=1_000.0)
    assert_told(supervisor)


@pytest.mark.parametrize("full_for", [[layout.STOP], [layout.NOTICE], [layout.STOP, layout.NOTICE, layout.NOTICE]])
def test_what_a_full_disk_held_up_is_written_when_there_is_room(
    tmp_path: Path, disk: Disk, supervisor: subprocess.Popen[bytes], full_for: list[str]
) -> None:
    disk.full_for = full_for
    spot.watch(str(tmp_path), ENVIRON)
    assert_told(supervisor)
    assert disk.full_for == []
    for name in (layout.STOP, layout.NOTICE):
        assert (tmp_path / name).exists()
