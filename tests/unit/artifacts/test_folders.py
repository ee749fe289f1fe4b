"""Folders that clients keep by themselves may hold anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.artifacts.folders import ArtifactFolder
from windlass.core.errors import NotFound


def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    folder = ArtifactFolder(tmp_path, home=None)
    for name in ("pipe", "link"):
        with pytest.raises(NotFound, match=f"there is no artifact '{name}': what has that name is no file"):
            folder.open(name)


def test_nor_for_one_that_takes_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"data")
    content = ArtifactFolder(tmp_path, home=None).open("x")
    assert b"".join(content.read(1, 3)) == b"at"
    (tmp_path / "x").unlink()
    os.mkfifo(tmp_path / "x")
    with pytest.raises(OSError, match="seek"):
        list(content.read(0, 4))
