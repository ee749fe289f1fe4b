"""Servers that share nothing but a database and a bucket: what one is sent, all have; an outage loses nothing."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from httpx import Client

from windlass.blobs.opening import open_blobs
from windlass.server.compose import compose
from windlass.server.homefolder import prepare
from windlass.server.settings import Role, Settings
from windlass.testing.postgres import PostgresServer
from windlass.testing.s3 import S3Server
from windlass.testing.servers import end_processes_of, running_server, serving
from windlass.wire.config import BlobsSection

SCRIPT = b"import pathlib; print('code from the bucket:', pathlib.Path('data.txt').read_text())\n"
DATA = b"hello"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tar(*contents: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for content in contents:
            info = tarfile.TarInfo(digest(content))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


FILES = {
    "files": [
        {"path": "main.py", "sha256": digest(SCRIPT), "size": len(SCRIPT)},
        {"path": "data.txt", "sha256": digest(DATA), "size": len(DATA)},
    ]
}


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> BlobsSection:
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    return s3_server.section()


@pytest.fixture
def two_servers(bucket: BlobsSection, database_url: str, tmp_path: Path) -> Iterator[tuple[Client, Client]]:
    """Homes of their own, as on two machines."""
    with ExitStack() as stack:
        clients = []
        for name in ("one", "other"):
            home = tmp_path / name
            prepare(home)
            parts = compose(Settings(home=home, database_url=database_url, role=Role.API, blobs=bucket, auth=False))
            stack.callback(parts.db.close)
            clients.append(stack.enter_context(serving(parts)))
        yield clients[0], clients[1]


def test_what_one_server_is_sent_the_other_has(two_servers: tuple[Client, Client], tmp_path: Path) -> None:
    one, other = two_servers
    receipt = one.post("/api/snapshots", json=FILES).json()
    assert sorted(receipt["missing"]) == sorted([digest(SCRIPT), digest(DATA)])
    assert other.post("/api/blobs", content=tar(SCRIPT, DATA)).status_code == 204
    assert one.post("/api/snapshots", json=FILES).json() == {"digest": receipt["digest"], "missing": []}
    body = {"spec": {"command": "python main.py"}, "code_digest": receipt["digest"]}
    run = other.post("/api/runs", json=body).json()
    assert one.get(f"/api/runs/{run['id']}").json()["code_digest"] == receipt["digest"]
    assert [path for name in ("one", "other") for path in (tmp_path / name / "blobs").rglob("*/*")] == []


def test_an_outage_of_the_bucket_is_told_and_leaves_nothing_half(
    two_servers: tuple[Client, Client], s3_server: S3Server, bucket: BlobsSection, tmp_path: Path
) -> None:
    one, other = two_servers
    s3_server.stop()
    try:
        for answer in (
            one.post("/api/snapshots", json=FILES),
            one.post("/api/blobs", content=tar(SCRIPT, DATA)),
            one.post("/api/runs", json={"spec": {"command": "x"}, "code_digest": digest(b"some manifest")}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), answer.text
        # What needs no blobs goes on.
        assert one.post("/api/runs", json={"spec": {"command": "x", "code": None}}).status_code in (200, 201)
        assert one.get("/api/runs").json()["runs"]
        checks = {check["code"]: check["status"] for check in one.get("/api/doctor").json()}
        assert (checks["database.reach"], checks["blobs.reach"]) == ("ok", "fail")
    finally:
        s3_server.start()
    assert list(open_blobs(bucket, home=tmp_path, environ=s3_server.environ).digests()) == []
    assert one.post("/api/snapshots", json=FILES).status_code == 200
    assert other.post("/api/blobs", content=tar(SCRIPT, DATA)).status_code == 204
    assert one.post("/api/snapshots", json=FILES).json()["missing"] == []


@pytest.mark.postgres
def test_a_run_whose_code_is_in_the_bucket(
    s3_server: S3Server, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """An API server and a controller, each with a home of its own and one config file, over PostgreSQL and S3."""
    section = s3_server.section()
    config = tmp_path / "windlass.yaml"
    config.write_text(
        f"database:\n  url: {postgres_server.create_database()}\n"
        f"blobs:\n  url: {section.url}\n  endpoint: {section.endpoint}\n"
        "engines:\n  here: {type: local, warm: false}\n"
    )
    environ = {**s3_server.environ, "WINDLASS_TOKEN": "t"}
    given = ["--config", str(config), "--role"]
    controller_home = tmp_path / "controller"
    with running_server(tmp_path / "api", arguments=[*given, "api"], environ=environ) as server:
        server.token = "t"
        with server.client() as client, _controller(controller_home, [*given, "controller"], environ):
            receipt = client.post("/api/snapshots", json=FILES).json()
            client.post("/api/blobs", content=tar(SCRIPT, DATA))
            _wait_for_node(client)
            body = {"spec": {"command": "python main.py"}, "code_digest": receipt["digest"]}
            run_id = client.post("/api/runs", json=body).json()["id"]
            run = _wait_for_end(client, run_id)
    assert run["state"] == "succeeded", run
    (log,) = controller_home.rglob("rank-0.log")
    assert "code from the bucket: hello" in log.read_text()


def _controller(home: Path, arguments: list[str], environ: dict[str, str]) -> ExitStack:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    command = [sys.executable, "-m", "windlass.server", "--home", str(home), *arguments]
    stack = ExitStack()
    stack.callback(end_processes_of, home)
    process = subprocess.Popen(command, env={**clean, **environ})
    stack.callback(process.wait)
    stack.callback(process.kill)
    return stack


def _wait_for_node(client: Client) -> None:
    deadline = time.monotonic() + 60
    while not client.get("/api/cluster").json()["nodes"]:
        assert time.monotonic() < deadline, "no node is seen"
        time.sleep(0.1)


def _wait_for_end(client: Client, run_id: str) -> dict[str, object]:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        run: dict[str, object] = client.get(f"/api/runs/{run_id}").json()
        if run["state"] in ("succeeded", "failed", "cancelled"):
            return run
        time.sleep(0.1)
    raise AssertionError(f"{run_id} does not end: {client.get(f'/api/runs/{run_id}/why').text}")
