from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from windlass.core.errors import Conflict, InvalidInput
from windlass.server import homefolder
from windlass.server.settings import Role, Settings
from windlass.wire.engines import LocalConfig


def test_defaults(tmp_path: Path) -> None:
    settings = Settings.from_environ({}, home=tmp_path)
    assert settings.auth
    assert settings.role is Role.ALL
    assert settings.database_url == f"sqlite:///{tmp_path}/windlass.db"
    assert settings.engines == {"local": LocalConfig(type="local", nodes=1, warm=True)}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "localhost", "::1"])
def test_no_auth_is_fine_on_this_machine(tmp_path: Path, host: str) -> None:
    assert not Settings.from_environ({}, home=tmp_path, host=host, auth=False).auth


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.com", "localhost.example.com", ""])
def test_no_auth_is_refused_anywhere_else(tmp_path: Path, host: str) -> None:
    with pytest.raises(InvalidInput, match="--no-auth is for this machine only"):
        Settings.from_environ({}, home=tmp_path, host=host, auth=False)
    assert Settings.from_environ({}, home=tmp_path, host=host).auth


@pytest.mark.parametrize(("text", "warm"), [("0", False), ("false", False), ("no", False), ("1", True), ("yes", True)])
def test_warm_launch_can_be_turned_off(tmp_path: Path, text: str, warm: bool) -> None:
    engine = Settings.from_environ({"WINDLASS_WARM": text}, home=tmp_path).engines["local"]
    assert isinstance(engine, LocalConfig)
    assert engine.warm is warm


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("0", "is '0', and must be at least 1"),
        ("-1", "is '-1', and must be"),
        ("two", "input should"),
        ("1.5", "input"),
    ],
)
def test_a_number_of_nodes_is_needed(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(InvalidInput, match=f"WINDLASS_LOCAL_NODES: `engines.local.nodes`: {rule}"):
        Settings.from_environ({"WINDLASS_LOCAL_NODES": text}, home=tmp_path)


def test_a_limit_of_a_size_is_told_with_its_unit(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"`logs\.limit`: is '1MB', and must be at least 1MiB"):
        Settings.from_environ({"WINDLASS_LOGS_LIMIT": "1MB"}, home=tmp_path)


def test_own_prices_replace_the_usual_ones(tmp_path: Path) -> None:
    environ = {"WINDLASS_CPU_PRICE": "0.5", "WINDLASS_GPU_PRICES": "H100=1.25, mi300x=2"}
    prices = Settings.from_environ(environ, home=tmp_path).prices
    assert prices.cpu_usd == 0.5
    assert (prices.gpu_price("h100"), prices.gpu_price("gaudi3"), prices.gpu_price("t4")) == (1.25, 2.0, 0.35)


def test_prices_of_tpus_are_by_the_names_that_specs_have_for_them(tmp_path: Path) -> None:
    environ = {"WINDLASS_PRICES_TPU": "{v5e: 0.9, tpu-v9-slice: 7}"}
    prices = Settings.from_environ(environ, home=tmp_path).prices
    assert [prices.gpu_price(f"tpu:{name}") for name in ("v5e", "v9", "v4", "")] == [0.9, 7, 3.22, 2.0]


@pytest.mark.parametrize(
    "environ",
    [
        {"WINDLASS_CPU_PRICE": "cheap"},
        {"WINDLASS_GPU_PRICES": "h100"},
        {"WINDLASS_GPU_PRICES": "h100=x"},
        {"WINDLASS_CPU_PRICE": "-1"},
        {"WINDLASS_CPU_PRICE": "nan"},
    ],
)
def test_a_price_that_cannot_be_read_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=r"WINDLASS_(CPU_PRICE|GPU_PRICES): `prices\."):
        Settings.from_environ(environ, home=tmp_path)


def test_a_home_has_one_server(tmp_path: Path) -> None:
    with homefolder.owned(tmp_path):
        homefolder.write_note(tmp_path, "http://127.0.0.1:1")
        with (
            pytest.raises(Conflict, match=r"a server runs for .* already"),
            homefolder.owned(tmp_path),
        ):
            pass
    with homefolder.owned(tmp_path):
        pass


def test_the_token_is_made_once_and_is_nobody_elses_to_read(tmp_path: Path) -> None:
    token = homefolder.load_token(tmp_path, {})
    assert len(token) >= 32
    assert homefolder.load_token(tmp_path, {}) == token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert homefolder.load_token(tmp_path, {"WINDLASS_TOKEN": "given"}) == "given"


def test_an_empty_token_is_no_token(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    with pytest.raises(InvalidInput, match="is empty"):
        homefolder.load_token(tmp_path, {})


def test_the_note_tells_where_the_server_is_until_it_ends(tmp_path: Path) -> None:
    assert homefolder.read_note(tmp_path) == {}
    homefolder.write_note(tmp_path, "http://127.0.0.1:5")
    note = homefolder.read_note(tmp_path)
    assert (note["url"], note["pid"]) == ("http://127.0.0.1:5", os.getpid())
    homefolder.remove_note(tmp_path)
    assert homefolder.read_note(tmp_path) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_broken_note_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    assert homefolder.read_note(tmp_path) == {}


def test_the_note_of_another_server_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text('{"url": "http://x", "pid": 1}')
    homefolder.remove_note(tmp_path)
    assert homefolder.read_note(tmp_path)["pid"] == 1


def test_a_home_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cannot be used") as refused:
        homefolder.prepare(tmp_path / "file" / "home")
    assert refused.value.hint == "choose another with --home"
