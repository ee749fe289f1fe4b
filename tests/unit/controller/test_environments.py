"""What a run ran with is on record even if it was over sooner than that was known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.controller.stage import Stage
from windlass.agent import layout
from windlass.agent.files import write_json
from windlass.controller.environments import LateEnvironments
from windlass.engines.contract import Observation

FOUND = {"python_version": "3.11.9", "packages": {"torch": "2.9"}}


def test_one_that_comes_after_the_end(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observe = stage.engine._observe

    def with_folder(attempt_id: str) -> Observation:
        return replace(observe(attempt_id), log_dirs=(str(tmp_path),))

    monkeypatch.setattr(stage.engine, "_observe", with_folder)
    run_id = stage.submit("exit 0")
    stage.pass_time()
    stage.pass_time()
    assert stage.state(run_id) == "succeeded"
    assert stage.service.view(run_id).environment is None
    write_json(str(tmp_path / layout.ENVIRONMENT), FOUND)
    stage.pass_time()
    assert stage.service.view(run_id).environment == FOUND


def test_it_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    late = LateEnvironments()
    late.await_of("r-1.1", [str(tmp_path)], 0.0)
    late.await_of("r-2.1", ["stored://r-2.1/0"], 0.0)
    assert late.take(119.0) == {}
    assert late.take(121.0) == {}
    write_json(str(tmp_path / layout.ENVIRONMENT), FOUND)
    assert late.take(122.0) == {}


@pytest.mark.parametrize("text", [None, "", "[]"], ids=["unreadable", "empty", "no object"])
def test_one_that_cannot_be_read_keeps_no_other_waiting_and_is_let_go(tmp_path: Path, text: str | None) -> None:
    late = LateEnvironments()
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    for folder in (broken, whole):
        folder.mkdir()
    path = broken / layout.ENVIRONMENT
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    late.await_of("r-1.1", [str(broken)], 0.0)
    late.await_of("r-2.1", [str(path / "below a file")], 0.0)
    late.await_of("r-3.1", [str(whole)], 0.0)
    write_json(str(whole / layout.ENVIRONMENT), FOUND)
    assert late.take(1.0) == {"r-3.1": FOUND}
    assert late.take(121.0) == {}
    assert late._awaited == {}
