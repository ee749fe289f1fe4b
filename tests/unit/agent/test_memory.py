"""Whose a folder in a node's memory is, and when it is given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from windlass.agent.memory import KEPT_S, folder_name, forget, memory_folder, sweep


def plan(**changes: Any) -> dict[str, Any]:
    return {"run_id": "run1", "run_dir": "/home/runs/run1", "node_rank": 0, **changes}


def test_it_is_the_same_for_every_attempt_and_another_for_every_node_and_home(tmp_path: Path) -> None:
    folder = memory_folder(plan(attempt=1), memory=str(tmp_path))
    assert folder is not None
    assert Path(folder).is_dir()
    assert memory_folder(plan(attempt=2), memory=str(tmp_path)) == folder
    others = {folder_name(plan(node_rank=1)), folder_name(plan(run_dir="/copy/runs/run1")), folder_name(plan())}
    assert len(others) == 3


def test_a_resumed_run_finds_nothing_of_before(tmp_path: Path) -> None:
    before = memory_folder(plan(), memory=str(tmp_path))
    assert before is not None
    disown(before)
    beside = memory_folder(plan(node_rank=1), memory=str(tmp_path))
    other = memory_folder(plan(run_id="run2"), memory=str(tmp_path))
    after = memory_folder(plan(attempt=3, first_attempt=3), memory=str(tmp_path))
    assert after is not None
    assert after != before
    assert not os.path.exists(before)  # nobody will come for it
    assert memory_folder(plan(attempt=4, first_attempt=3), memory=str(tmp_path)) == after
    sweep(memory=str(tmp_path))
    left = {name for name in os.listdir(os.path.dirname(after)) if name != ".lock"}
    assert left == {os.path.basename(str(folder)) for folder in (after, beside, other)}


def disown(folder: str) -> None:
    """Its owner is dead."""
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (Path(folder) / "owner.json").write_text(json.dumps({"pid": int(dead.stdout), "start": 1}))


def test_without_a_place_of_its_own_there_is_none(tmp_path: Path) -> None:
    assert memory_folder(plan(), memory=str(tmp_path / "missing")) is None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"windlass-{os.getuid()}").symlink_to(elsewhere)  # somebody else's trap
    assert memory_folder(plan(), memory=str(tmp_path)) is None


def test_it_is_swept_when_its_owner_is_dead_and_long_gone(tmp_path: Path) -> None:
    folder = memory_folder(plan(), memory=str(tmp_path))
    assert folder is not None
    later = time.time() + KEPT_S + 60
    sweep(memory=str(tmp_path), now=later)
    assert os.path.isdir(folder)  # this process lives
    disown(folder)
    sweep(memory=str(tmp_path))
    assert os.path.isdir(folder)  # somebody may come for it
    sweep(memory=str(tmp_path), now=later)
    assert [name for name in os.listdir(os.path.dirname(folder)) if name != ".lock"] == []


def test_forgetting_twice_is_forgetting_once(tmp_path: Path) -> None:
    folder = memory_folder(plan(), memory=str(tmp_path))
    assert folder is not None
    (Path(folder) / "rank-0-0.arena").write_bytes(b"x")
    forget(folder)
    forget(folder)
    assert not os.path.exists(folder)
    assert memory_folder(plan(), memory=str(tmp_path)) == folder
