"""Finding the server: given, from the environment, or the embedded one of a home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.client.endpoint import process_start, resolve_endpoint, running_server
from windlass.core.errors import InvalidInput, ServerUnreachable
from windlass.core.home import default_home


def note(home: Path, pid: int, pid_start: int | None) -> None:
    record = {"url": "http://127.0.0.1:1234", "pid": pid, "pid_start": pid_start, "version": "0"}
    (home / "server.json").write_text(json.dumps(record))


def test_what_is_given_wins(tmp_path: Path) -> None:
    environ = {"WINDLASS_URL": "https://env:1/", "WINDLASS_TOKEN": "env"}
    given = resolve_endpoint("http://given:2/", "mine", tmp_path, environ)
    assert (given.url, given.token, given.is_local) == ("http://given:2", "mine", False)
    from_env = resolve_endpoint(None, None, tmp_path, environ)
    assert (from_env.url, from_env.token) == ("https://env:1", "env")
    assert "env" not in repr(from_env).replace("https://env:1", "")


def test_the_embedded_server_of_the_home(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    note(tmp_path, os.getpid(), process_start(os.getpid()))
    found = resolve_endpoint(None, None, tmp_path, {})
    assert (found.url, found.token, found.is_local) == ("http://127.0.0.1:1234", "t0ken", True)


def test_a_note_of_a_dead_server_counts_as_none(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    note(tmp_path, process.pid, 1)
    assert running_server(tmp_path) is None
    note(tmp_path, os.getpid(), 1)  # the number was given to another process since
    assert running_server(tmp_path) is None
    with pytest.raises(ServerUnreachable, match="no server is running") as caught:
        resolve_endpoint(None, None, tmp_path, {})
    assert "windlass up" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"url": 1, "pid": "x"}'])
def test_a_broken_note_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    assert running_server(tmp_path) is None


@pytest.mark.parametrize(
    "url", ["localhost:80", "ftp://x", "http://", "http://host:abc", "http://host:0", "http://[::1"]
)
def test_what_is_no_url(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInput, match="is not a server url"):
        resolve_endpoint(url, None, tmp_path, {})


def test_the_home(tmp_path: Path) -> None:
    assert default_home({"WINDLASS_HOME": str(tmp_path)}) == tmp_path
    assert default_home({}) == Path.home() / ".windlass"
    assert default_home({"WINDLASS_HOME": "~/x"}) == Path.home() / "x"
