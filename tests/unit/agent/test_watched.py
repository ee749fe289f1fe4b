"""The watcher's start as the supervisor sees it: whatever fails, the run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.agent import layout, watched

WANTED = {"WINDLASS_CHECKPOINT": json.dumps({"watch": "*.pt"}), "RANK": "0"}


def test_a_node_without_the_library_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_root", lambda: None)
    assert watched.start_watcher({**WANTED, "WINDLASS_NODE_DIR": str(tmp_path)}, "/", 1) is None
    line = json.loads((tmp_path / layout.metrics_spool(0)).read_text())
    assert line["a"]["kind"] == "checkpoint-failed"


def test_an_alert_that_cannot_be_written_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watched, "_root", lambda: None)
    (tmp_path / layout.metrics_spool(0)).symlink_to("/dev/full")
    assert watched.start_watcher({**WANTED, "WINDLASS_NODE_DIR": str(tmp_path)}, "/", 1) is None
    assert "nothing is watched" in capfd.readouterr().err
