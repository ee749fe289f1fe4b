"""The git state and the environment that a run is submitted from."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windlass.client import provenance
from windlass.client.provenance import gather_origin, git_state, search_path


def git(folder: Path, *arguments: str) -> None:
    names = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env=os.environ | names)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-b", "trunk")
    (tmp_path / "a.py").write_text("one\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_outside_a_repository_git_is_not_even_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(provenance, "_git", lambda folder, *_: asked.append(folder))
    assert git_state(tmp_path) is None
    assert not asked
    (tmp_path / ".git").mkdir()
    assert git_state(tmp_path / "deep" / "below") is None
    assert asked == [tmp_path / "deep" / "below"]


def test_a_clean_repository(repository: Path) -> None:
    (repository / "untracked.py").write_text("")
    state = git_state(repository)
    assert state is not None
    assert (state.branch, state.dirty, state.diff, state.remote) == ("trunk", False, None, None)
    assert len(state.commit or "") == 40


def test_changes_staged_or_not_are_in_the_diff(repository: Path) -> None:
    (repository / "b.py").write_text("two\n")
    git(repository, "add", "b.py")
    (repository / "a.py").write_text("changed\n")
    state = git_state(repository)
    assert state is not None
    assert state.dirty
    assert "+two" in (state.diff or "")
    assert "+changed" in (state.diff or "")


def test_a_password_in_the_remote_is_not_kept(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://me:hunter2@example.org/x.git")
    state = git_state(repository)
    assert state is not None
    assert state.remote == "https://example.org/x.git"


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-b", "trunk")
    state = git_state(tmp_path)
    assert state is not None
    assert (state.commit, state.branch, state.dirty) == (None, "trunk", False)


def test_a_long_diff_is_cut_at_a_line(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "MOST_DIFF_BYTES", 1000)
    (repository / "a.py").write_text("a line\n" * 1000)
    state = git_state(repository)
    assert state is not None
    lines = (state.diff or "").splitlines()
    assert lines[-2] == "+a line"
    assert lines[-1].startswith("# cut off here")


def test_no_repository_and_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert git_state(tmp_path) is None


def test_a_git_that_hangs_costs_no_more_than_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    started = time.monotonic()
    assert git_state(tmp_path, timeout_s=0.2) is None
    assert time.monotonic() - started < 5


def test_the_origin_says_where_from(repository: Path) -> None:
    origin = gather_origin(repository, {"PATH": "/bin", "VIRTUAL_ENV": "/v", "LANG": "", "SECRET": "x"})
    assert (origin.search_path, origin.env, origin.cwd) == ("/bin", {"VIRTUAL_ENV": "/v"}, os.getcwd())
    assert origin.git is not None
    assert (origin.client or "").startswith("windlass ")


def test_the_search_path_is_that_of_this_interpreters_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/project/.venv/bin/python")
    monkeypatch.setattr(sys, "prefix", "/project/.venv")
    monkeypatch.setattr(sys, "argv", ["/project/.venv/bin/windlass", "run"])
    assert search_path({"PATH": "/bin"}) == "/project/.venv/bin:/bin"
    assert search_path({"PATH": "/bin:/project/.venv/bin"}) == "/bin:/project/.venv/bin"
    assert search_path({"PATH": "/bin", "CONDA_PREFIX": "/conda"}) == "/bin"
    monkeypatch.setattr(sys, "argv", ["/home/me/.local/bin/windlass", "run"])
    assert search_path({"PATH": "/bin"}) == "/bin"
    monkeypatch.setattr(sys, "argv", ["script.py"])
    assert search_path({}) == "/project/.venv/bin"
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert search_path({"PATH": "/bin"}) == "/bin"
