"""Files that are kept with a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass import job
from windlass.job.session import Session


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "model"
    monkeypatch.setattr("windlass.job.artifacts.session", lambda: Session({"SM_MODEL_DIR": str(folder)}))
    return folder


def test_a_file_is_copied_whole(output: Path, tmp_path: Path) -> None:
    source = tmp_path / "loss.png"
    source.write_bytes(b"1")
    assert job.artifact(source) == output / "loss.png"
    source.write_bytes(b"22")
    assert job.artifact(source).read_bytes() == b"22"
    assert job.artifact(source, "plots/loss.png").read_bytes() == b"22"
    assert sorted(path.name for path in output.iterdir()) == ["loss.png", "plots"]
    assert job.artifact(output / "loss.png").read_bytes() == b"22"


def test_a_folder_replaces_the_one_before(output: Path, tmp_path: Path) -> None:
    for content in ("old", "new"):
        folder = tmp_path / content
        folder.mkdir()
        (folder / content).write_text(content)
        job.artifact(folder, "net")
    assert [path.name for path in (output / "net").iterdir()] == ["new"]
    assert [path.name for path in output.iterdir()] == ["net"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../b", "."])
def test_names_that_lead_elsewhere(output: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(ValueError, match="is no name of an artifact"):
        job.artifact(tmp_path / "x", name)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        job.artifact(tmp_path / "y")
