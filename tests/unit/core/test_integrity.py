from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from windlass.checkpoints.removal import remove_folder
from windlass.core.integrity import Finding, check_folder
from windlass.core.manifest import MANIFEST, Manifest, PartFile, SaveReason, folder_name, render_manifest

RUN, STEP = "r-1", 7


def save(root: Path, *, step: int = STEP, run_id: str | None = RUN, names: tuple[str, ...] = ("a", "sub/b")) -> Path:
    folder = root / folder_name(step)
    parts = []
    for name in names:
        data = name.encode() * 1_000
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        parts.append(PartFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))
    manifest = Manifest(
        run_id=run_id,
        attempt=1,
        step=step,
        created_at=1.0,
        reason=SaveReason.INTERVAL,
        world_size=1,
        plan="",
        files=tuple(parts),
    )
    (folder / MANIFEST).write_text(render_manifest(manifest))
    return folder


def look(folder: Path, *, contents: bool = True) -> tuple[Finding, str]:
    found = check_folder(str(folder), run_id=RUN, step=STEP, contents=contents)
    return found.finding, found.problems[0] if found.problems else ""


def test_a_whole_checkpoint_is_good(tmp_path: Path) -> None:
    assert look(save(tmp_path)) == (Finding.GOOD, "")


def test_a_flipped_bit_is_found_in_any_file(tmp_path: Path) -> None:
    for name in ("a", "sub/b"):
        folder = save(tmp_path)
        data = bytearray((folder / name).read_bytes())
        data[500] ^= 1
        (folder / name).write_bytes(data)
        finding, problem = look(folder)
        assert (finding, problem) == (Finding.CORRUPT, f"{name} has changed since it was saved: its sha256 is another")
        assert look(folder, contents=False)[0] is Finding.GOOD


def test_lost_and_cut_files_are_found(tmp_path: Path) -> None:
    folder = save(tmp_path)
    os.truncate(folder / "a", 10)
    assert look(folder) == (Finding.CORRUPT, "a has 10 bytes, not 1000")
    (folder / "a").unlink()
    assert look(folder) == (Finding.CORRUPT, "a is missing")


def test_what_cannot_be_told_is_not_guessed(tmp_path: Path) -> None:
    assert look(tmp_path / "other" / "step-7")[0] is Finding.UNSEEN
    assert look(Path("relative"))[0] is Finding.UNSEEN
    assert check_folder("s3://bucket/step-7", run_id=RUN, step=STEP).finding is Finding.UNSEEN


def test_what_is_gone_while_its_folder_is_there_is_missing(tmp_path: Path) -> None:
    assert look(tmp_path / "step-7") == (Finding.MISSING, f"{tmp_path}/step-7 is not there any more")
    folder = save(tmp_path, run_id="r-2")
    assert look(folder) == (Finding.MISSING, f"{folder} now holds step 7 of r-2")


@pytest.mark.parametrize("text", ["", "{}", '{"version": 0}', "\0"])
def test_a_manifest_that_cannot_be_read_is_corrupt(tmp_path: Path, text: str) -> None:
    folder = save(tmp_path)
    (folder / MANIFEST).write_text(text)
    assert look(folder)[0] is Finding.CORRUPT
    (folder / MANIFEST).unlink()
    assert look(folder) == (Finding.CORRUPT, f"{folder} has no {MANIFEST}")


def test_of_what_a_newer_version_has_saved_nothing_is_concluded(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / MANIFEST).write_text('{"version": 99}')
    finding, problem = look(folder)
    assert (finding, "saved by a newer version" in problem) == (Finding.UNSEEN, True)
    assert "saved by a newer version" in (remove_folder(folder, run_id=RUN, step=STEP) or "")
    assert (folder / "a").exists()


def test_a_manifest_of_another_step_is_corrupt(tmp_path: Path) -> None:
    folder = save(tmp_path)
    old = json.loads((folder / MANIFEST).read_text())
    del old["sha256"]
    (folder / MANIFEST).write_text(json.dumps({**old, "step": STEP + 8}))
    assert look(folder) == (Finding.CORRUPT, f"the manifest in {folder.name} is of step {STEP + 8}")


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "", "link/file", "sub/../../out"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("precious")
    (tmp_path / "out").write_text("precious")
    folder = save(tmp_path, names=("a",))
    (folder / "link").symlink_to(elsewhere)
    manifest = Manifest(
        run_id=RUN,
        attempt=1,
        step=STEP,
        created_at=1.0,
        reason=SaveReason.FINAL,
        world_size=1,
        plan="",
        files=(PartFile(name=name, size_bytes=8, sha256=hashlib.sha256(b"precious").hexdigest()),),
    )
    (folder / MANIFEST).write_text(render_manifest(manifest))
    assert look(folder) == (Finding.CORRUPT, f"the manifest names {name!r}, which is no file of its folder")
    remove_folder(folder, run_id=RUN, step=STEP)
    assert (elsewhere / "file").exists()
    assert (tmp_path / "out").exists()


def test_removal_takes_what_the_manifest_names_and_nothing_else(tmp_path: Path) -> None:
    folder = save(tmp_path)
    other = save(tmp_path, step=8)
    assert remove_folder(folder, run_id=RUN, step=STEP) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name]
    assert remove_folder(folder, run_id=RUN, step=STEP) is None
    mine = save(tmp_path)
    (mine / "notes.txt").write_text("mine")
    assert remove_folder(mine, run_id=RUN, step=STEP) is None
    assert [path.read_text() for path in tmp_path.rglob("notes.txt")] == ["mine"]


def test_what_is_no_checkpoint_of_the_run_stays(tmp_path: Path) -> None:
    folder = save(tmp_path, run_id="r-2")
    assert remove_folder(folder, run_id=RUN, step=STEP) == f"{folder} now holds step 7 of r-2"
    (folder / MANIFEST).write_text("{")
    assert "cannot be read" in (remove_folder(folder, run_id=RUN, step=STEP) or "")
    (folder / MANIFEST).unlink()
    assert remove_folder(folder, run_id=RUN, step=STEP) == f"{folder} has no {MANIFEST}"
    assert (folder / "a").exists()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("survives", range(8))
def test_a_removal_that_is_broken_off_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    folder = save(tmp_path)
    left = [survives]

    def mortal(real):  # type: ignore[no-untyped-def]
        def act(*args, **kwargs):  # type: ignore[no-untyped-def]
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return real(*args, **kwargs)

        return act

    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "rmdir"):
            patch.setattr(os, name, mortal(getattr(os, name)))
        try:
            remove_folder(folder, run_id=RUN, step=STEP)
        except Killed:
            # Either still whole, or no checkpoint any more.
            assert look(folder)[0] in (Finding.GOOD, Finding.MISSING)
    assert remove_folder(folder, run_id=RUN, step=STEP) is None
    assert list(tmp_path.iterdir()) == []
