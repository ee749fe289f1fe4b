"""What of a run's output folder becomes artifacts, and what is said of the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.controller.outputs import MOST_FILES, OutputFile, decide_kept, describe_left, output_folder, scan


def file(path: str, size_bytes: int) -> OutputFile:
    return OutputFile(path=path, size_bytes=size_bytes, changed_at=1.0)


@pytest.mark.parametrize(
    ("log_dirs", "folder"),
    [
        (["/home/runs/r-1/attempts/2/node-0", "/home/runs/r-1/attempts/2/node-1"], "/home/runs/r-1/model"),
        (["stored://r-1.2/0"], None),
        (["/somewhere/else/3/4"], None),
        (["/x"], None),
        ([], None),
    ],
)
def test_the_folder_of_a_run(log_dirs: list[str], folder: str | None) -> None:
    assert output_folder(log_dirs) == folder


def test_one_that_is_too_large_costs_no_other() -> None:
    found = [file("a", 90), file("b", 10), file("c", 80)]
    choice = decide_kept(found, limit_bytes=100)
    assert [one.path for one in choice.kept] == ["b", "c"]
    assert [one.path for one in choice.left] == ["a"]
    told = describe_left(choice.left, [], "/model", 100)
    assert told == (
        "artifacts: 1 of its output files (90 B) are beyond artifacts.limit (100 B), such as a. They stay in /model"
    )
    assert decide_kept(found, limit_bytes=None).left == []
    assert describe_left([], [], "/", None) is None


def test_there_are_not_too_many() -> None:
    choice = decide_kept([file(str(number), 0) for number in range(MOST_FILES + 2)], limit_bytes=None)
    assert (len(choice.kept), len(choice.left)) == (MOST_FILES, 2)


def test_links_and_drafts_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "net.pt").write_bytes(b"123")
    (tmp_path / ".artifact-x").mkdir()
    (tmp_path / ".artifact-x" / "half").write_bytes(b"")
    (tmp_path / "shadow").symlink_to("/etc/passwd")
    (tmp_path / "etc").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    assert [(one.path, one.size_bytes) for one in scan(str(tmp_path))] == [("deep/er/net.pt", 3)]
    assert list(scan(str(tmp_path / "nowhere"))) == []
