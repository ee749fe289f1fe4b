"""What was acknowledged is on the disk, its name included: what lost power would leave."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from windlass.artifacts.folders import ArtifactFolder
from windlass.blobs.local import LocalBlobs

DATA = b"some bytes"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, set[str]]]:
    """What was synced, in order, and the names that were in it, if it is a folder."""
    found: list[tuple[Path, set[str]]] = []
    really = os.fsync

    def noted(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        found.append((path, set(os.listdir(path)) if path.is_dir() else set()))
        really(fd)

    monkeypatch.setattr(os, "fsync", noted)
    return found


@pytest.mark.parametrize("way", ["put", "put_stream", "intake"])
def test_a_blob_is_there_by_name_before_it_is_acknowledged(
    way: str, tmp_path: Path, synced: list[tuple[Path, set[str]]]
) -> None:
    blobs = LocalBlobs(tmp_path)
    digest = LocalBlobs(tmp_path / "other").put(DATA)
    # Another process is about to make the same folder, and has not synced it.
    blobs.path(digest).parent.mkdir()
    synced.clear()
    if way == "put":
        blobs.put(DATA)
    elif way == "put_stream":
        blobs.put_stream(digest, io.BytesIO(DATA))
    else:
        intake = blobs.intake()
        intake.write(DATA)
        intake.seal()
        intake.place()
        intake.close()
    (first, _), (folder, names), (root, folders) = synced
    assert first.parent == root == tmp_path
    assert folder == blobs.path(digest).parent
    assert digest in names
    assert folder.name in folders


def test_so_is_a_file_in_a_folder_of_artifacts(tmp_path: Path, synced: list[tuple[Path, set[str]]]) -> None:
    ArtifactFolder(tmp_path, home=None).put_bytes("model/data/weights.bin", DATA)
    seen = dict(synced[1:])
    assert "weights.bin" in seen[tmp_path / "model/data"]
    assert "data" in seen[tmp_path / "model"]
    assert "model" in seen[tmp_path]
