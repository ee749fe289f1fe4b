from __future__ import annotations

import hashlib
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from windlass.agent import kernel
from windlass.agent.command import CannotStart
from windlass.agent.snapshot import MARKER, lay_out


class Snapshot:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.files: list[dict[str, Any]] = []

    def add(self, path: str, content: bytes = b"text", mode: int = 0o644, **changes: Any) -> None:
        digest = hashlib.sha256(content).hexdigest()
        blob = self.folder / "blobs" / digest[:2] / digest
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        self.files.append({"path": path, "mode": mode, "sha256": digest, "size": len(content), **changes})

    def lay_out(self, attempt_id: str = "r-1.1") -> None:
        manifest = self.folder / "manifest"
        manifest.write_text(json.dumps({"version": 1, "files": self.files}))
        lay_out(
            run_dir=str(self.folder),
            workdir=str(self.work),
            manifest=str(manifest),
            blobs=str(self.folder / "blobs"),
            attempt_id=attempt_id,
        )

    def lose_power(self, monkeypatch: pytest.MonkeyPatch, *, emptied: str, marker: str | None = None) -> None:
        """What a journal keeps of files that were not synced: names and times, and the marker's are the last."""
        (self.work / emptied).write_bytes(b"")
        laid = self.folder / MARKER
        laid.write_text(laid.read_text() if marker is None else marker)
        monkeypatch.setattr(kernel, "boot_id", lambda: "the next life of the machine")

    def change(self, path: str, text: str) -> None:
        """As the run does: later than it was laid out. File systems count time in steps of some milliseconds."""
        laid_at_ns = (self.folder / MARKER).stat().st_ctime_ns
        while True:
            (self.work / path).write_text(text)
            if (self.work / path).stat().st_ctime_ns > laid_at_ns:
                return


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return Snapshot(tmp_path)


def test_files_modes_and_links(snapshot: Snapshot) -> None:
    snapshot.add("a/b/run.sh", b"#!/bin/sh\n", 0o755)
    snapshot.files.append({"path": "latest", "link": "a/b", "sha256": None})
    snapshot.lay_out()
    assert (snapshot.work / "latest" / "run.sh").read_bytes() == b"#!/bin/sh\n"
    assert (snapshot.work / "a/b/run.sh").stat().st_mode & 0o777 == 0o755


def test_files_are_copies(snapshot: Snapshot) -> None:
    snapshot.add("a.txt", b"text")
    snapshot.lay_out()
    (snapshot.work / "a.txt").write_text("changed")
    (blob,) = (snapshot.folder / "blobs").rglob("*/*")
    assert blob.read_bytes() == b"text"


def test_it_is_done_once(snapshot: Snapshot) -> None:
    snapshot.add("a.txt", b"text")
    snapshot.lay_out()
    (snapshot.work / "a.txt").write_text("changed by the first attempt")
    snapshot.lay_out()
    assert (snapshot.work / "a.txt").read_text() == "changed by the first attempt"


def test_half_done_is_done_again(snapshot: Snapshot) -> None:
    snapshot.add("a.txt", b"text")
    snapshot.work.mkdir()
    (snapshot.work / "a.txt").write_text("te")
    (snapshot.work / "own.txt").write_text("kept")
    snapshot.lay_out()
    assert (snapshot.work / "a.txt").read_text() == "text"
    assert (snapshot.work / "own.txt").read_text() == "kept"


@pytest.mark.parametrize("marker", [None, "", '{"manifest": "m"}'], ids=["whole", "lost too", "of an older version"])
def test_what_lost_power_has_cut_short_is_laid_out_again(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, marker: str | None
) -> None:
    snapshot.add("train.py", b"print()", 0o755)
    snapshot.add("empty.txt", b"")
    snapshot.lay_out("r-1.1")
    snapshot.lose_power(monkeypatch, emptied="train.py", marker=marker)
    snapshot.change("own.txt", "kept")
    snapshot.lay_out("r-1.2")
    assert (snapshot.work / "train.py").read_text() == "print()"
    assert (snapshot.work / "train.py").stat().st_mode & 0o777 == 0o755
    assert (snapshot.work / "own.txt").read_text() == "kept"
    assert sorted(path.name for path in snapshot.work.iterdir()) == ["empty.txt", "own.txt", "train.py"]


def test_what_the_run_has_changed_or_removed_stays_so_after_lost_power(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("notes.txt", "old.txt", "removed.txt", "lost.txt", "linked.txt"):
        snapshot.add(name, b"a long text")
    snapshot.lay_out("r-1.1")
    elsewhere = snapshot.folder / "elsewhere.txt"
    elsewhere.touch()
    (snapshot.work / "removed.txt").unlink()
    (snapshot.work / "linked.txt").unlink()
    (snapshot.work / "linked.txt").symlink_to(elsewhere)
    snapshot.lose_power(monkeypatch, emptied="lost.txt")
    snapshot.change("notes.txt", "")
    snapshot.change("old.txt", "short")
    os.utime(snapshot.work / "old.txt", (1.0, 1.0))  # as `cp -p` and tar do
    for attempt_id in ("r-1.2", "r-1.3"):
        snapshot.lay_out(attempt_id)
        assert (snapshot.work / "notes.txt").read_text() == ""
        assert (snapshot.work / "old.txt").read_text() == "short"
        assert not (snapshot.work / "removed.txt").exists()
        assert elsewhere.read_text() == ""
        assert (snapshot.work / "lost.txt").read_text() == "a long text"


def test_nobody_looks_at_files_while_no_power_can_have_been_lost(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is up as before, or it is another node of the same attempt."""
    snapshot.add("a.txt", b"text")
    snapshot.lay_out("r-1.1")
    (snapshot.folder / "manifest").unlink()
    shutil.rmtree(snapshot.folder / "blobs")
    again = partial(
        lay_out, run_dir=str(snapshot.folder), workdir=str(snapshot.work), manifest="gone", blobs="gone too"
    )
    again(attempt_id="r-1.2")
    monkeypatch.setattr(kernel, "boot_id", lambda: "another machine")
    again(attempt_id="r-1.1")
    with pytest.raises(CannotStart, match="the code snapshot is missing"):
        again(attempt_id="r-1.2")


@pytest.mark.parametrize("path", ["../out", "/etc/out", "a/../../out", ".", "a/.."])
def test_paths_that_lead_out_are_refused(snapshot: Snapshot, path: str) -> None:
    snapshot.add(path)
    with pytest.raises(CannotStart, match="leads out of the working folder"):
        snapshot.lay_out()


@pytest.mark.parametrize("link", ["/etc", "../..", "a/../../.."])
def test_links_that_lead_out_are_refused(snapshot: Snapshot, link: str) -> None:
    snapshot.files.append({"path": "link", "link": link})
    with pytest.raises(CannotStart, match="out of the working folder"):
        snapshot.lay_out()


def test_a_file_is_not_written_through_a_link_of_an_earlier_attempt(snapshot: Snapshot, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    snapshot.work.mkdir()
    (snapshot.work / "a").symlink_to(elsewhere)
    snapshot.add("a/file.txt")
    with pytest.raises(CannotStart, match="leads out"):
        snapshot.lay_out()
    assert list(elsewhere.iterdir()) == []


def test_missing_and_wrong_content_is_named(snapshot: Snapshot) -> None:
    snapshot.add("a.txt", b"text", size=5)
    with pytest.raises(CannotStart, match=r"'a\.txt' in the code snapshot has 4 bytes, not 5"):
        snapshot.lay_out()
    snapshot.files[0].update(size=4, sha256="0" * 64)
    with pytest.raises(CannotStart, match=r"lacks the content of 'a\.txt'"):
        snapshot.lay_out()
