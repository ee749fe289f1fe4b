from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from windlass.agent import rescue
from windlass.agent.rescue import patience_s, save_what_is_left


def ended(reason: str, trouble: str | None = None) -> dict[str, Any]:
    return {"reason": reason, "trouble": trouble}


def plan(folder: Path, nnodes: int = 1) -> dict[str, Any]:
    return {"memory_dir": str(folder), "nnodes": nnodes}


@pytest.mark.parametrize(
    ("reason", "trouble", "expected"),
    [
        ("exit_code", None, 60.0),
        ("signal", None, 60.0),
        ("hang", None, 60.0),
        ("cancelled", None, 5.0),
        ("timeout", None, 5.0),
        ("completed", None, None),
        ("preempted", None, None),
        ("launch_failed", None, None),
        ("exit_code", "nan", None),
        ("exit_code", "exploded", None),
    ],
)
def test_after_which_ends_it_is_waited_for(
    reason: str, trouble: str | None, expected: float | None, tmp_path: Path
) -> None:
    assert patience_s(plan(tmp_path), ended(reason, trouble)) == expected
    assert patience_s(plan(tmp_path, nnodes=2), ended(reason, trouble)) is None
    assert patience_s({"nnodes": 1, "memory_dir": None}, ended(reason, trouble)) is None


def leave(folder: Path, code: str) -> None:
    (folder / "terms.json").write_text(json.dumps({"argv": [sys.executable, "-c", code, str(folder)]}))


def test_it_runs_what_the_ranks_have_left(tmp_path: Path) -> None:
    leave(tmp_path, "import os, sys; open(sys.argv[1] + '/done', 'w').write(os.environ['RANK'] + os.environ['KEY'])")
    save_what_is_left(plan(tmp_path), {"KEY": "k", "RANK": "3"}, ended("exit_code"))
    assert (tmp_path / "done").read_text() == "0k"


def test_it_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescue, "_STOPPED_S", 0.2)
    leave(tmp_path, "import time; time.sleep(600)")
    began = time.monotonic()
    save_what_is_left(plan(tmp_path), {}, ended("cancelled"))
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("terms", [None, "", "[]", "{}", '{"argv": ["/nowhere/python"]}'])
def test_without_a_word_of_how_nothing_is_done(terms: str | None, tmp_path: Path) -> None:
    if terms is not None:
        (tmp_path / "terms.json").write_text(terms)
    save_what_is_left(plan(tmp_path), {}, ended("exit_code"))
