"""The config file: defaults, precedence, problems with their place, and pages that cannot drift."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from windlass.core.errors import InvalidConfig, InvalidInput
from windlass.server.catalogue import Setting, render_file, render_table, settings
from windlass.server.config import load_config
from windlass.server.settings import Settings
from windlass.wire.config import ServerConfig
from windlass.wire.engines import LocalConfig

ROOT = Path(__file__).parents[3]


def loaded(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **flags: Any) -> ServerConfig:
    if text:
        (tmp_path / "config.yaml").write_text(text)
    given = {("server", name): (f"--{name}", value) for name, value in flags.items()}
    return load_config(environ or {}, home=tmp_path, flags=given).config


def problems(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(InvalidConfig) as refused:
        loaded(tmp_path, text, environ)
    return refused.value.problems


# ---- the file that is written --------------------------------------------------------------------------------------


def test_the_written_file_gives_the_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path, render_file()) == ServerConfig()


def test_the_written_file_gives_the_defaults_with_every_setting_switched_on(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^( *)#(?! )", r"\1", re.sub(r"(?m)^#(?=  )(?!   )", "", render_file()))
    text = re.sub(r"(?m)^#(    [a-z]+: )(?!local|ray|slurm|kubernetes)", r"\1", text)
    config = load_config({}, home=tmp_path, file=_written(tmp_path, text))
    assert config.config == ServerConfig()
    switched_on = {path[:2] for path in config.origins}
    assert {setting.path for setting in settings()} <= switched_on


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    return path


def test_every_setting_is_explained() -> None:
    assert [setting.name for setting in settings() if not setting.description] == []


def test_the_page_lists_every_setting() -> None:
    page = (ROOT / "docs" / "config.md").read_text()
    assert render_table() in page, "docs/config.md: replace the table by what catalogue.render_table() gives"


# ---- where values come from ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "variable", "flag", "port", "origin"),
    [
        (None, None, None, None, None),
        (1, None, None, 1, "config.yaml:2"),
        (None, 2, None, 2, "WINDLASS_SERVER_PORT"),
        (1, 2, None, 2, "WINDLASS_SERVER_PORT"),
        (None, None, 3, 3, "--port"),
        (1, None, 3, 3, "--port"),
        (1, 2, 3, 3, "--port"),
    ],
)
def test_precedence(
    tmp_path: Path, file: int | None, variable: int | None, flag: int | None, port: int | None, origin: str | None
) -> None:
    if file:
        (tmp_path / "config.yaml").write_text(f"server:\n  port: {file}\n")
    environ = {"WINDLASS_SERVER_PORT": str(variable)} if variable else {}
    flags = {("server", "port"): ("--port", flag)} if flag else {}
    found = load_config(environ, home=tmp_path, flags=flags)
    assert found.config.server.port == port
    told = found.origins.get(("server", "port"))
    assert (told.text if told else None) == origin


EXAMPLES: dict[str, Any] = {
    "server.host": "::1",
    "server.port": 5,
    "server.url": "https://w.example",
    "server.auth": False,
    "server.role": "api",
    "server.token_file": "/run/token",
    "server.secret_key_file": "/run/key",
    "database.url": "postgresql://u@h/d",
    "database.pool": 3,
    "blobs.url": "s3://bucket/prefix",
    "blobs.endpoint": "http://minio:9000",
    "blobs.region": "eu-central-1",
    "blobs.access_key_variable": "KEY",
    "blobs.secret_key_variable": "SECRET",
    "blobs.timeout": 7.0,
    "blobs.retries": 1,
    "artifacts.limit": 5_000_000_000,
    "artifacts.root": "s3://bucket/mlruns",
    "logs.archive": "never",
    "logs.keep": 3600.0,
    "logs.limit": 5_000_000_000,
    "metrics.keep_points": 3600.0,
    "metrics.keep": 7200.0,
    "engines": {"here": {"type": "local", "nodes": 2, "warm": False}},
    "projects": {"vision": {"engines": ["local"]}},
    "default_engines": ["local"],
    "scheduling.policy": "backfill",
    "scheduling.preempt": False,
    "scheduling.half_life": 3600.0,
    "scheduling.min_run": 60.0,
    "scheduling.ageing": 60.0,
    "scheduling.starving": 60.0,
    "scheduling.user_limit": {"gpu": 8, "runs": 10},
    "scheduling.max_queued": 9,
    "scheduling.max_queued_per_user": 3,
    "prices.cpu": 0.5,
    "prices.gpu": {"h100": 2.1},
    "prices.tpu": {"v5e": 1.1},
    "controller.shards": 4,
    "controller.lease": 9.0,
}


def test_the_examples_are_complete() -> None:
    assert list(EXAMPLES) == [setting.name for setting in settings()]


@pytest.mark.parametrize("setting", settings(), ids=lambda setting: setting.name)
def test_every_setting_can_be_given_by_variable_and_by_file(tmp_path: Path, setting: Setting) -> None:
    value = EXAMPLES[setting.name]
    text = json.dumps(value) if setting.structured else str(value)
    by_variable = loaded(tmp_path, environ={setting.variable: text})
    nested: Any = value
    for part in reversed(setting.path):
        nested = {part: nested}
    by_file = loaded(tmp_path, json.dumps(nested))  # JSON is YAML
    assert by_variable == by_file != ServerConfig()
    assert by_file.model_dump(mode="json", exclude_unset=True) == nested


def test_an_empty_variable_is_none(tmp_path: Path) -> None:
    assert loaded(tmp_path, environ={setting.variable: "" for setting in settings()}) == ServerConfig()


def test_the_older_variables_go_on_working(tmp_path: Path) -> None:
    environ = {
        "WINDLASS_LOCAL_NODES": "3",
        "WINDLASS_WARM": "0",
        "WINDLASS_CPU_PRICE": "0.5",
        "WINDLASS_GPU_PRICES": "h100=1",
    }
    text = "engines: {a: {type: local, nodes: 2}, b: {type: slurm, shared_dir: /s}}\nprices: {cpu: 1}\n"
    config = loaded(tmp_path, text, environ)
    assert config.engines["a"] == LocalConfig(type="local", nodes=3, warm=False)
    assert (config.prices.cpu, config.prices.gpu) == (0.5, {"h100": 1.0})


def test_the_file_is_found_by_option_variable_or_in_the_home(tmp_path: Path) -> None:
    for name, port in (("config.yaml", 1), ("named.yaml", 2), ("given.yaml", 3)):
        (tmp_path / name).write_text(f"server: {{port: {port}}}\n")
    environ = {"WINDLASS_CONFIG": str(tmp_path / "named.yaml")}
    assert Settings.from_environ({}, home=tmp_path).port == 1
    assert Settings.from_environ(environ, home=tmp_path).port == 2
    assert Settings.from_environ(environ, home=tmp_path, config=tmp_path / "given.yaml").port == 3
    assert Settings.from_environ({}, home=tmp_path / "other").port is None
    with pytest.raises(InvalidInput, match=r"the config file .*gone\.yaml cannot be read: No such file"):
        Settings.from_environ({}, home=tmp_path, config=tmp_path / "gone.yaml")


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("server:\n  prt: 5\n", "config.yaml:2: unknown key `server.prt`; did you mean `port`?"),
        ("\ndatabse:\n  url: x\n", "config.yaml:2: unknown key `databse`; did you mean `database`?"),
        ("server: 5\n", "config.yaml:1: `server`: input should be a valid dictionary"),
        ("server: {port: many}\n", "config.yaml:1: `server.port`: input should be a valid integer"),
        ("server:\n  role: king\n", "config.yaml:2: `server.role`: input should be 'all', 'api' or 'controller'"),
        ("server:\n  url: here\n", "config.yaml:2: `server.url`: 'here' is not a url of a server"),
        ("artifacts:\n  root: mlruns\n", "config.yaml:2: `artifacts.root`: 'mlruns' is no place for artifacts; write"),
        ("artifacts:\n  root: runs:/1\n", "config.yaml:2: `artifacts.root`: 'runs:/1' is no place for artifacts"),
        ("blobs:\n  url: ftp://x\n", "config.yaml:2: `blobs.url`: 'ftp://x' is not a store; known: file:///PATH,"),
        ("engines:\n  a:\n    type: slrm\n", "config.yaml:2: `engines.a`: unknown type slrm; known: local, ray,"),
        ("engines:\n  a: {nodes: 2}\n", "config.yaml:2: `engines.a`: `type` is missing: it says of which type"),
        (
            "engines:\n  a: {type: local}\n  b: {type: local}\n",
            "config.yaml:1: `engines`: 'a' and 'b' are both of type local",
        ),
        ("engines:\n  a:\n    type: local\n    node: 2\n", "config.yaml:4: unknown key `engines.a.node`; did you mean"),
        ("engines: {}\n", "config.yaml:1: `engines`: dictionary should have at least 1 item"),
        ("default_engines: [slurm]\n", "`default_engines`: there is no engine 'slurm'; known: local"),
        ("controller:\n  lease: 1s\n", "config.yaml:2: `controller.lease`: 1 s is too short: a controller writes"),
        ("- a\n", "config.yaml:1: a config is a mapping of keys, not list"),
        ("server: {}\nserver: {}\n", "config.yaml:2: key `server` is given twice; first on line 1"),
        ("server: [\n", "config.yaml:2: not YAML"),
    ],
)
def test_problems_have_their_line_and_the_nearest_key(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = problems(tmp_path, text)
    assert found.startswith(problem)


def test_every_problem_is_told_at_once_wherever_it_is(tmp_path: Path) -> None:
    environ = {"WINDLASS_SERVER_ROL": "api", "WINDLASS_DATABASE_POOL": "many"}
    found = problems(tmp_path, "server:\n  port: -1\n  hots: x\n", environ)
    assert {problem.split(": ")[0] for problem in found} == {
        "unknown variable WINDLASS_SERVER_ROL; did you mean WINDLASS_SERVER_ROLE?",
        "WINDLASS_DATABASE_POOL",
        "config.yaml:2",
        "config.yaml:3",
    }


def test_variables_of_others_are_left_alone(tmp_path: Path) -> None:
    environ = {"WINDLASS_RUN_ID": "r", "WINDLASS_LOG": "DEBUG", "WINDLASS_HOME": "/x", "SERVER_PORT": "1"}
    assert loaded(tmp_path, environ=environ) == ServerConfig()


def test_what_kubernetes_says_about_services_is_not_for_us(tmp_path: Path) -> None:
    environ = {
        "WINDLASS_SERVER_SERVICE_HOST": "10.0.0.1",
        "WINDLASS_SERVER_SERVICE_PORT": "8470",
        "WINDLASS_SERVER_SERVICE_PORT_HTTP": "8470",
        "WINDLASS_SERVER_PORT": "tcp://10.0.0.1:8470",
        "WINDLASS_SERVER_PORT_8470_TCP_ADDR": "10.0.0.1",
        "WINDLASS_SERVER_PORT_8470_TCP": "tcp://10.0.0.1:8470",
        "WINDLASS_DATABASE_PORT": "tcp://10.0.0.2:5432",
    }
    assert loaded(tmp_path, environ=environ) == ServerConfig()


def test_projects_without_engines_have_those_of_all_others(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "engines: {a: {type: local}, b: {type: slurm, shared_dir: /s}}\n"
        "projects: {vision: {engines: [b]}, speech: {}}\ndefault_engines: [a]\n"
    )
    access = Settings.from_environ({}, home=tmp_path).engine_access
    assert [access.of_project(name) for name in ("vision", "speech", "other")] == [{"b"}, {"a"}, {"a"}]


@pytest.mark.parametrize(
    ("archive", "url", "wanted"),
    [
        ("auto", None, False),
        ("auto", "file:///blobs", False),
        ("auto", "s3://bucket", True),
        ("auto", "gs://bucket/prefix", True),
        ("auto", "memory://", False),
        ("always", None, True),
        ("never", "s3://bucket", False),
    ],
)
def test_logs_are_archived_where_all_servers_can_read_them(
    tmp_path: Path, archive: str, url: str | None, wanted: bool
) -> None:
    environ = {"WINDLASS_LOGS_ARCHIVE": archive, "WINDLASS_BLOBS_URL": url or ""}
    assert Settings.from_environ(environ, home=tmp_path).archive_logs is wanted
