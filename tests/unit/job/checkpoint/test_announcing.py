from __future__ import annotations

import shutil
from pathlib import Path

from windlass.core.manifest import MANIFEST, Manifest, SaveReason, folder_name, render_manifest
from windlass.job.checkpoint.announcing import Announcer
from windlass.job.session import Session
from windlass.tracking.points import parse_spool
from windlass.tracking.saves import Listed, Saved


def save(root: Path, step: int, at: float = 1.0) -> Path:
    folder = root / folder_name(step)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        run_id="r-1",
        attempt=1,
        step=step,
        created_at=at,
        reason=SaveReason.INTERVAL,
        world_size=1,
        plan="",
        files=(),
    )
    (folder / MANIFEST).write_text(render_manifest(manifest))
    return folder


def told(spool: Path) -> list[str]:
    notes = parse_spool((spool / "metrics-0.jsonl").read_bytes(), 0).saves
    return [
        f"={len(note.folders)}"
        if isinstance(note, Listed)
        else f"{'+' if isinstance(note, Saved) else '-'}{Path(note.folder).name.removeprefix('step-').lstrip('0')}"
        for note in notes
    ]


def test_what_is_new_and_what_is_gone_is_told_once(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    announcer = Announcer(root, mine=Session({"WINDLASS_NODE_DIR": str(tmp_path), "WINDLASS_RUN_ID": "r-1"}))
    assert announcer.look() == []
    first = save(root, 1)
    save(root, 2)
    (root / ".step-0000000003-abc").mkdir()
    (root / folder_name(4)).mkdir()  # no manifest: no checkpoint
    announcer.look()
    announcer.look()
    assert told(tmp_path) == ["=0", "+1", "+2"]
    shutil.rmtree(first)
    save(root, 2, at=9.0)
    save(root, 5)
    assert [saved.manifest.step for saved in announcer.look()] == [5, 2]
    assert told(tmp_path) == ["=0", "+1", "+2", "-1", "+2", "+5"]


def test_a_later_attempt_tells_of_what_it_finds(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    save(root, 7)
    Announcer(root, mine=Session({"WINDLASS_NODE_DIR": str(tmp_path), "WINDLASS_RUN_ID": "r-1"})).look()
    assert told(tmp_path) == ["=1", "+7"]
