from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from windlass.core.manifest import Manifest, PartFile, SaveReason
from windlass.job.session import Session
from windlass.tracking.points import parse_spool
from windlass.tracking.saves import FoundCorrupt, Removed, Saved


def manifest(step: int = 7, **metrics: float) -> Manifest:
    return Manifest(
        run_id="r-1",
        attempt=2,
        step=step,
        created_at=1_000.5,
        reason=SaveReason.WARNED,
        world_size=4,
        plan="data=4",
        files=(PartFile(name="a", size_bytes=3, sha256="0"), PartFile(name="b", size_bytes=4, sha256="1")),
        metrics=metrics,
    )


def line(said: object, *, step: int | None = 7) -> bytes:
    return json.dumps({"t": 1.0, "s": step, "c": said}).encode() + b"\n"


GOOD: dict[str, Any] = {
    "folder": "/c/step-7",
    "tier": "folder",
    "created_at": 1.0,
    "size_bytes": 1,
    "files": 1,
    "world_size": 1,
    "reason": "interval",
}


def test_what_a_job_says_of_its_checkpoints_is_read_back_in_order(tmp_path: Path) -> None:
    session = Session({"WINDLASS_NODE_DIR": str(tmp_path), "RANK": "0", "WINDLASS_RUN_ID": "r-1"})
    session.checkpoint("/c/step-7", manifest(loss=0.5, bad=math.nan))
    session.checkpoint_removed("/c/step-1")
    session.checkpoint_corrupt("/c/step-2", "b has 3 bytes, not 4")
    data = (tmp_path / "metrics-0.jsonl").read_bytes()
    chunk = parse_spool(data, 0)
    saved, removed, corrupt = chunk.saves
    assert isinstance(saved, Saved)
    assert (saved.step, saved.folder, saved.tier, saved.created_at) == (7, "/c/step-7", "folder", 1_000.5)
    assert (saved.size_bytes, saved.file_count, saved.world_size) == (7, 2, 4)
    assert (saved.plan, saved.format, saved.reason, saved.metrics) == ("data=4", "dcp", "warned", {"loss": 0.5})
    assert removed == Removed(at=removed.at, folder="/c/step-1")
    assert corrupt == FoundCorrupt(at=corrupt.at, folder="/c/step-2", why="b has 3 bytes, not 4")
    assert (chunk.points, chunk.alerts, chunk.bad_lines) == ([], [], 0)


def test_places_are_whole_paths_or_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session = Session({"WINDLASS_NODE_DIR": str(tmp_path), "WINDLASS_RUN_ID": "r-1"})
    session.checkpoint_removed("out/step-1")
    session.checkpoint_removed("s3://bucket/step-1")
    notes = parse_spool((tmp_path / "metrics-0.jsonl").read_bytes(), 0).saves
    assert [note.folder for note in notes if isinstance(note, Removed)] == [
        str(tmp_path / "out/step-1"),
        "s3://bucket/step-1",
    ]


def test_outside_a_run_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Session({}).checkpoint("/c/step-7", manifest())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "said",
    [
        "x",
        None,
        [],
        {},
        {"folder": "/c"},
        {"removed": 3},
        {"removed": ""},
        {"root": "/c"},
        {"root": "/c", "there": [3]},
        {"root": "/c", "there": 3},
        {"removed": "a\0b"},
        {"removed": "/" + "x" * 5_000},
        {**GOOD, "size_bytes": -1},
        {**GOOD, "files": 2**40},
        {**GOOD, "created_at": "now"},
        {**GOOD, "metrics": [1]},
    ],
)
def test_what_is_no_note_is_counted(said: object) -> None:
    chunk = parse_spool(line(said), 0)
    assert (chunk.saves, chunk.bad_lines) == ([], 1)


def test_a_checkpoint_is_of_a_step() -> None:
    assert parse_spool(line(GOOD, step=None), 0).bad_lines == 1
    assert parse_spool(line(GOOD), 0).bad_lines == 0


def test_what_programs_say_is_cut_to_what_can_be_kept() -> None:
    metrics = {"a\0": 1, "b": "inf", **{f"m{n}": n for n in range(300)}}
    (note,) = parse_spool(line({**GOOD, "plan": "p" * 5_000, "reason": "r" * 100, "metrics": metrics}), 0).saves
    assert isinstance(note, Saved)
    assert (len(note.plan), len(note.reason), len(note.metrics)) == (2_000, 32, 199)
    assert "a\ufffd" in note.metrics


def test_a_job_knows_what_the_spec_wants_of_checkpoints() -> None:
    assert Session({}).wanted_checkpoints == {}
    wanted = Session({"WINDLASS_CHECKPOINT": '{"every":"10m","keep":5}'}).wanted_checkpoints
    assert wanted == {"every": "10m", "keep": 5}
    with pytest.raises(ValueError, match="WINDLASS_CHECKPOINT must be a JSON object, not list"):
        _ = Session({"WINDLASS_CHECKPOINT": "[]"}).wanted_checkpoints
