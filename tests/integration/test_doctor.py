"""What a server finds when it looks at its own surroundings, and how `windlass doctor` tells it."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from windlass.cli.commands import build_app
from windlass.core.resources import Node
from windlass.scheduling.engines import EngineState, commit_engines
from windlass.scheduling.nodes import commit_nodes
from windlass.server.checks.clocks import compare
from windlass.server.compose import Parts, compose
from windlass.server.settings import Role, Settings
from windlass.testing.kubernetes import KubernetesCluster
from windlass.testing.s3 import S3Server
from windlass.testing.servers import serving
from windlass.testing.slurm import SlurmCluster
from windlass.wire.checks import CheckView
from windlass.wire.engines import LocalConfig
from windlass.wire.kubernetes import KubernetesConfig
from windlass.wire.ray import RayConfig
from windlass.wire.runs import Origin, SubmitRequest
from windlass.wire.slurm import SlurmConfig

NODE = Node(engine="local", name="n", cpus=1, memory_bytes=1, gpus=0, gpu_type=None)


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    return Settings(home=home, database_url=database_url, role=Role.API)


@pytest.fixture
def sqlite_settings(tmp_path: Path, sqlite_template: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    return Settings(home=home, database_url=f"sqlite:///{home}/windlass.db", role=Role.API)


def found_by(parts: Parts) -> dict[str, CheckView]:
    try:
        return {check.code: check for check in parts.services.checks()}
    finally:
        parts.db.close()


def test_a_healthy_server(settings: Settings) -> None:
    parts = compose(settings)
    with parts.db.write() as tx:
        now = parts.services.clock.now()
        commit_engines(tx, {"local": EngineState(type="local", seen_at=now)})
        commit_nodes(tx, "local", [NODE], now=now)
    checks = found_by(parts)
    codes = {"database.reach", "database.schema", "blobs.write", "key.open", "engine.reach"}
    if settings.database_url.startswith("postgresql"):
        codes |= {"database.version", "database.clock"}
        shared = checks.pop("key.shared")  # the key and the token were made here; another server would make others
        assert (shared.status, "WINDLASS_SECRET_KEY" in shared.found, "WINDLASS_TOKEN" in shared.found) == (
            "warn",
            True,
            True,
        )
    assert set(checks) == codes
    assert {check.status for check in checks.values()} == {"ok"}, checks
    assert checks["engine.reach"].found == "local, 1 node"
    assert list((settings.home / "blobs").rglob("*/*")) == []


@pytest.mark.parametrize(
    ("state", "status", "part"),
    [
        (None, "warn", "no controller has opened it yet"),
        (EngineState(type="local", seen_at=1.0), "warn", "answers, but has no nodes"),
        (EngineState(type="local", unreachable_since=1.0, message="socket closed"), "fail", "socket closed"),
    ],
)
def test_an_engine_that_cannot_be_used(
    sqlite_settings: Settings, state: EngineState | None, status: str, part: str
) -> None:
    parts = compose(sqlite_settings)
    if state is not None:
        with parts.db.write() as tx:
            commit_engines(tx, {"local": state})
    check = found_by(parts)["engine.reach"]
    assert (check.status, check.name) == (status, "engine local")
    assert part in check.found
    assert check.advice


def test_tools_that_are_not_there(sqlite_settings: Settings, tmp_path: Path) -> None:
    config = SlurmConfig(type="slurm", shared_dir=tmp_path, bin_dir=tmp_path / "nowhere")
    checks = found_by(compose(dataclasses.replace(sqlite_settings, engines={"cluster": config}, role=Role.ALL)))
    assert checks["engine.tools"].status == "fail"
    assert "No such file" in checks["engine.tools"].found
    assert checks["engine.folder"].status == "ok"
    # A server that only answers requests has no business with them.
    checks = found_by(compose(dataclasses.replace(sqlite_settings, engines={"cluster": config})))
    assert "engine.tools" not in checks


def test_a_cluster_that_cannot_be_found(sqlite_settings: Settings, tmp_path: Path) -> None:
    config = KubernetesConfig(type="kubernetes", kubeconfig=str(tmp_path / "none"))
    checks = found_by(compose(dataclasses.replace(sqlite_settings, engines={"pods": config}, role=Role.ALL)))
    assert checks["engine.tools"].status == "fail"


@pytest.mark.slurm
def test_slurms_tools_tell_their_version(
    sqlite_settings: Settings, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    config = SlurmConfig(type="slurm", shared_dir=tmp_path, conf=slurm_cluster.conf)
    parts = compose(dataclasses.replace(sqlite_settings, engines={"cluster": config}, role=Role.ALL))
    found = [check for check in parts.services.checks() if check.code == "engine.tools"]
    parts.db.close()
    assert [(check.status, check.found.split()[1]) for check in found] == [("ok", "slurm-wlm")] * 4


@pytest.mark.kubernetes
def test_the_rights_of_an_installation_are_enough(
    sqlite_settings: Settings, kubernetes_cluster: KubernetesCluster
) -> None:
    def checks(namespace: str) -> dict[str, CheckView]:
        file = str(kubernetes_cluster.controller_kubeconfig)
        config = KubernetesConfig(type="kubernetes", kubeconfig=file, namespace=namespace)
        return found_by(compose(dataclasses.replace(sqlite_settings, engines={"pods": config}, role=Role.ALL)))

    found = checks("windlass-runs")
    assert found["engine.version"].found.startswith("Kubernetes v")
    assert found["engine.rights"].status == "ok", found["engine.rights"].found
    found = checks("kube-system")
    assert found["engine.rights"].status == "fail"
    assert found["engine.rights"].found.startswith("may not create pods")


@pytest.mark.parametrize(
    ("url", "status"), [(None, "fail"), ("http://127.0.0.1:8470", "warn"), ("https://windlass.example", "ok")]
)
def test_nodes_elsewhere_must_know_where_the_server_is(sqlite_settings: Settings, url: str | None, status: str) -> None:
    engines = {"ray": RayConfig(type="ray", address="h:6379"), "local": LocalConfig(type="local")}
    checks = found_by(compose(dataclasses.replace(sqlite_settings, engines=engines, url=url)))
    assert checks["engine.url"].status == status


def test_a_bucket(sqlite_settings: Settings, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    checks = found_by(compose(dataclasses.replace(sqlite_settings, blobs=s3_server.section())))
    assert [checks[code].status for code in ("blobs.write", "blobs.clock")] == ["ok", "ok"]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    checks = found_by(compose(dataclasses.replace(sqlite_settings, blobs=s3_server.section())))
    assert checks["blobs.reach"].status == "fail"
    assert "refuses access" in checks["blobs.reach"].found
    assert "credentials" in checks["blobs.reach"].advice
    assert checks["engine.reach"].code  # the others are told nevertheless


def test_secrets_that_another_key_has_sealed(sqlite_settings: Settings) -> None:
    parts = compose(sqlite_settings)
    request = SubmitRequest(spec={"command": "x", "secrets": ["A"]}, secrets={"A": "secret"}, origin=Origin())
    parts.services.runs.submit(request, idempotency_key=None, user=None)
    assert found_by(parts)["key.open"].status == "ok"
    (sqlite_settings.home / "secret.key").unlink()
    check = found_by(compose(sqlite_settings))["key.open"]
    assert check.status == "fail"
    assert "sealed with another key" in check.found


@pytest.mark.parametrize(
    ("there", "status", "found"),
    [
        (100.0, "ok", "in step with the server's"),
        (102.9, "ok", "in step with the server's"),
        (96.0, "ok", "3.0 s off the server's"),
        (160.0, "warn", "58.0 s off the server's"),
        (40.0, "warn", "59.0 s off the server's"),
    ],
)
def test_clocks(there: float, status: str, found: str) -> None:
    check = compare("c", "n", there=there, before=100.0, after=101.0, exact_s=1.0)
    assert (check.status, check.found) == (status, found)
    assert bool(check.advice) == (status == "warn")


@pytest.fixture
def served(sqlite_settings: Settings) -> Iterator[str]:
    parts = compose(sqlite_settings)
    with serving(parts) as client:
        yield str(client.base_url)
    parts.db.close()


def test_the_command_tells_what_the_server_finds(
    served: str, sqlite_settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without a Python to try, which would take seconds
    monkeypatch.setenv("WINDLASS_HOME", str(sqlite_settings.home))
    result = CliRunner().invoke(build_app(), ["--url", served, "doctor", "--json"])
    found = {check["code"]: check for check in json.loads(result.output)}
    assert {"local.python", "server.reach", "database.reach", "blobs.write", "engine.reach"} <= set(found)
    assert found["server.controller"]["status"] == "fail"  # this one only answers requests
    assert result.exit_code == 1
    assert sys.version.split()[0] in found["local.python"]["found"]


def test_the_engines_are_listed(sqlite_settings: Settings) -> None:
    parts = compose(dataclasses.replace(sqlite_settings, auth=False))
    now = parts.services.clock.now()
    with serving(parts) as client:
        url = str(client.base_url)
        none = CliRunner().invoke(build_app(), ["--url", url, "engines"])
        assert (none.exit_code, none.stdout) == (0, "")
        with parts.db.write() as tx:
            states = {
                "here": EngineState(type="local", seen_at=now),
                "away": EngineState(type="slurm", unreachable_since=now - 3600, message="slurmctld is down"),
            }
            commit_engines(tx, states)
            commit_nodes(tx, "here", [dataclasses.replace(NODE, engine="here")], now=now)
        shown = CliRunner().invoke(build_app(), ["--url", url, "engines"]).stdout.splitlines()
    parts.db.close()
    assert [line.split()[:3] for line in shown] == [
        ["NAME", "TYPE", "NODES"],
        ["away", "slurm", "0"],
        ["here", "local", "1"],
    ]
    assert "unreachable for 1h" in shown[1]
    assert shown[1].endswith("slurmctld is down")
    assert shown[2].endswith("ok")
