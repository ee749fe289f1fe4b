from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from windlass.agent.command import CannotStart
from windlass.agent.snapshot import lay_out


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

    def lay_out(self) -> None:
        manifest = self.folder / "manifest"
        manifest.write_text(json.dumps({"version": 1, "files": self.files}))
        lay_out(
            run_dir=str(self.folder),
            workdir=str(self.work),
            manifest=str(manifest),
            blobs=str(self.folder / "blobs"),
        )


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
