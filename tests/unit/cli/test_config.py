"""`server init` and `server config`: a file nobody has to look up, and settings whose origin can be seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from windlass.cli.commands import build_app
from windlass.cli.config import hidden
from windlass.core.errors import Conflict, InvalidConfig
from windlass.server.catalogue import render_file


def invoke(*words: str) -> str:
    result = CliRunner().invoke(build_app(), list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_init_writes_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    invoke("--home", str(home), "server", "init")
    file = home / "config.yaml"
    assert file.read_text() == render_file()
    assert file.stat().st_mode & 0o077 == 0
    invoke("server", "init", str(tmp_path / "other.yaml"))
    assert (tmp_path / "other.yaml").read_text() == render_file()


def test_init_replaces_nothing_unless_told_to(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("server: {port: 1}\n")
    with pytest.raises(Conflict, match="is there already"):
        invoke("server", "init", str(file))
    assert file.read_text() == "server: {port: 1}\n"
    invoke("server", "init", str(file), "--force")
    assert file.read_text() == render_file()


def test_init_prints_it(tmp_path: Path) -> None:
    assert invoke("server", "init", "-") == render_file().rstrip("\n") + "\n"


def test_config_tells_where_each_value_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text("server:\n  port: 1\n  host: ::1\n")
    monkeypatch.setenv("WINDLASS_SERVER_PORT", "2")
    monkeypatch.setenv("WINDLASS_DATABASE_URL", "postgresql://ada:hunter2@db/windlass")
    monkeypatch.setenv("WINDLASS_LOCAL_NODES", "3")
    told = json.loads(invoke("--home", str(tmp_path), "server", "config", "--json"))
    assert told["file"] == str(tmp_path / "config.yaml")
    rows = {row["setting"]: (row["value"], row["from"]) for row in told["settings"]}
    assert rows["server.port"] == (2, "WINDLASS_SERVER_PORT")
    assert rows["server.host"] == ("::1", "config.yaml:3")
    assert rows["server.role"] == ("all", "default")
    assert rows["database.url"] == ("postgresql://ada:***@db/windlass", "WINDLASS_DATABASE_URL")
    engines, source = rows["engines"]
    assert (engines["local"]["nodes"], source) == (3, "WINDLASS_LOCAL_NODES")
    shown = invoke("--home", str(tmp_path), "server", "config")
    assert "hunter2" not in shown
    assert "WINDLASS_SERVER_PORT" in shown


def test_config_refuses_what_a_server_would_refuse(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("server: {prot: 1}\n")
    with pytest.raises(InvalidConfig, match=r"config\.yaml:1: unknown key `server.prot`; did you mean `port`"):
        invoke("--home", str(tmp_path), "server", "config")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgresql://a:b@h/d", "postgresql://a:***@h/d"),
        ("postgresql://a@h/d", "postgresql://a@h/d"),
        ("https://h:80/p@q", "https://h:80/p@q"),
        ({"password": "x", "user": "y"}, {"password": "***", "user": "y"}),
        ({"a": [{"api_token": "x"}]}, {"a": [{"api_token": "***"}]}),
        ({"token_file": "/run/t", "pool": 3}, {"token_file": "/run/t", "pool": 3}),
    ],
)
def test_secrets_are_hidden(value: object, shown: object) -> None:
    assert hidden(value) == shown
