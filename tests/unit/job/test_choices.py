"""What was found to be the fastest, kept for the next process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.job.choices import Choices, cache_folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "products" / "NVIDIA H200 1.json"


def test_the_next_process_knows_it(path: Path) -> None:
    assert Choices(path).get("a", 8) is None
    Choices(path).put("a", 5)
    assert Choices(path).get("a", 8) == 5
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_what_others_found_meanwhile_stays(path: Path) -> None:
    one, other = Choices(path), Choices(path)
    one.put("a", 1)
    other.put("b", 2)
    assert (Choices(path).get("a", 8), Choices(path).get("b", 8)) == (1, 2)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"a"', "\x00"])
def test_a_damaged_file_is_as_none(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    choices = Choices(path)
    assert choices.get("a", 8) is None
    choices.put("a", 1)
    assert Choices(path).get("a", 8) == 1


@pytest.mark.parametrize("value", [8, -1, "1", None, 1.0, True])
def test_what_is_no_choice_is_none(path: Path, value: object) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps({"a": value}))
    assert Choices(path).get("a", 8) is None


def test_where_nothing_can_be_written_it_is_known_here_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    choices = Choices(tmp_path / "file" / "below.json")
    choices.put("a", 3)
    assert choices.get("a", 8) == 3


def test_the_folder_is_where_caches_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "windlass"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "windlass"
