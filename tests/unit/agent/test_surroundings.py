"""What a run ran on and with is worth no run: whatever is wrong with its record, the record alone is missing."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.agent import layout, probe, supervisor, surroundings
from windlass.agent.ranks import RankCommand


@pytest.fixture
def plan(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "cache").mkdir()
    return {"node_dir": str(tmp_path), "cache_dir": str(tmp_path / "cache"), "gpus": []}


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of probes, none of which is started."""
    started: list[list[str]] = []

    def start(argv: list[str], _env: object) -> int:
        started.append(argv)
        return 4711

    monkeypatch.setattr(surroundings, "_start_probe", start)
    return started


def write_cache(plan: dict[str, Any], text: str) -> Path:
    path = Path(surroundings._cache_path(plan, sys.executable, {}))
    path.write_text(text)
    return path


def environment(plan: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(plan["node_dir"]) / layout.ENVIRONMENT).read_text())
    return found


def test_what_is_known_spares_the_probe(plan: dict[str, Any], probed: list[list[str]]) -> None:
    write_cache(plan, json.dumps({"folders": probe.folder_times(["/"]), "environment": {"python_version": "3"}}))
    assert surroundings.record(plan, sys.executable, {}) is None
    assert probed == []
    assert environment(plan)["python_version"] == "3"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"folders": {"/"', '{"folders": [], "environment": {}}', "\0" * 9])
def test_a_cache_that_cannot_be_understood_is_made_anew(
    plan: dict[str, Any], probed: list[list[str]], text: str
) -> None:
    cache = write_cache(plan, text)
    assert surroundings.record(plan, sys.executable, {}) == 4711
    assert [argv[-1] for argv in probed] == [str(cache)]


def test_a_record_that_cannot_be_written_is_only_said(
    plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(surroundings, "write_json", full)
    command = RankCommand(0, ["./train"], "./train", {}, "/", None)
    assert supervisor._record_surroundings(plan, command) is None
    assert "No space left on device" in capsys.readouterr().err


def test_what_a_probe_stores_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(fd: int) -> None:
        done.append(f"{os.fstat(fd).st_size} bytes")
        fsync(fd)

    def noted_replace(draft: str, path: str) -> None:
        done.append(os.path.basename(path))
        replace(draft, path)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    probe._store(str(tmp_path / "known.json"), {"a": 1})
    assert done == ["8 bytes", "known.json"]


def test_nothing_is_left_of_what_could_not_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        probe._store(str(tmp_path / "known.json"), {"a": 1})
    assert list(tmp_path.iterdir()) == []
