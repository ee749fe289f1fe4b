"""Logs of runs on one machine, read by a server on another: they are in the bucket once the run is over."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from httpx import Client

from windlass.server.compose import compose
from windlass.server.homefolder import prepare
from windlass.server.settings import Role, Settings
from windlass.testing.s3 import S3Server
from windlass.testing.servers import ServerProcess, end_processes_of, serving, start_server
from windlass.wire.config import BlobsSection

LINES = 3_000
COMMAND = f"i=0; while [ $i -lt {LINES} ]; do echo line $i of $RANK; i=$((i+1)); done; echo last >&2"


class Site:
    """A server with the local engine, which is killed and started again; others come and read."""

    def __init__(self, folder: Path, database_url: str, bucket: BlobsSection, environ: dict[str, str]) -> None:
        self.home = folder / "one"
        self.folder, self.database_url, self.bucket = folder, database_url, bucket
        self.environ = environ
        self.config = folder / "windlass.yaml"
        self.config.write_text(
            f"database:\n  url: {database_url}\n"
            f"blobs:\n  url: {bucket.url}\n  endpoint: {bucket.endpoint}\n  timeout: 5\n  retries: 1\n"
            "engines:\n  here: {type: local, warm: false}\n"
        )

    def start(self) -> ServerProcess:
        return start_server(self.home, arguments=["--config", str(self.config)], environ=self.environ)

    def reader(self, stack: ExitStack) -> Client:
        home = self.folder / "other"
        prepare(home)
        settings = Settings(
            home=home, database_url=self.database_url, role=Role.API, blobs=self.bucket, auth=False, archive_logs=False
        )
        parts = compose(settings)
        stack.callback(parts.db.close)
        return stack.enter_context(serving(parts))


@pytest.fixture
def site(s3_server: S3Server, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    return Site(tmp_path, database_url, s3_server.section(), s3_server.environ)


def test_logs_outlive_the_machine_that_wrote_them(site: Site) -> None:
    with ExitStack() as stack:
        stack.callback(end_processes_of, site.home)
        server = site.start()
        stack.callback(server.kill)
        client = stack.enter_context(server.client())
        run_id = run_to_its_end(client)
        until(lambda: is_archived(client, run_id), "the logs are archived")
        here = all_lines(client, run_id)
        server.kill()
        shutil.rmtree(site.home)
        other = site.reader(stack)
        assert len(here) == 2 * (LINES + 1)
        assert all_lines(other, run_id) == here
        assert all_lines(other, run_id, rank=1) == [line for line in here if line["rank"] == 1]
        assert lines_of(other, run_id, tail=3, rank=0) == [line for line in here if line["rank"] == 0][-3:]
        assert [line["text"] for line in lines_of(other, run_id, stream="stderr")] == ["last", "last"]


def test_an_outage_of_the_bucket_and_a_crash_delay_it(site: Site, s3_server: S3Server) -> None:
    with ExitStack() as stack:
        stack.callback(end_processes_of, site.home)
        server = site.start()
        stack.callback(lambda: server.kill())
        s3_server.stop()
        stack.callback(lambda: s3_server._process or s3_server.start())
        with server.client() as client:
            run_id = run_to_its_end(client)
            until(lambda: "logs cannot be archived now" in server.log.read_text(), "the outage is told")
            assert not is_archived(client, run_id)
            here = all_lines(client, run_id)
            assert len(here) == 2 * (LINES + 1)
        server.kill()
        s3_server.start()
        server = site.start()
        with server.client() as client:
            until(lambda: is_archived(client, run_id), "the logs are archived")
            assert all_lines(client, run_id) == here
        shutil.rmtree(site.home / "runs")
        assert all_lines(site.reader(stack), run_id) == here


def run_to_its_end(client: Client) -> str:
    spec = {"command": COMMAND, "code": None, "resources": {"cpus": 1}, "nproc": 2}
    run_id: str = client.post("/api/runs", json={"spec": spec}).raise_for_status().json()["id"]
    until(lambda: client.get(f"/api/runs/{run_id}").json()["state"] == "succeeded", "the run succeeds")
    return run_id


def is_archived(client: Client, run_id: str) -> bool:
    (attempt,) = client.get(f"/api/runs/{run_id}/attempts").json()["attempts"]
    places: list[str] = attempt["log_dirs"]
    return bool(places) and all(place.startswith("stored://") for place in places)


def lines_of(client: Client, run_id: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        client.get(f"/api/runs/{run_id}/logs", params=query).raise_for_status().json()["lines"]
    )
    return found


def all_lines(client: Client, run_id: str, **query: Any) -> list[dict[str, Any]]:
    """Page by page, as a reader does that goes on where it stopped."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        params = {"limit": 700, **query, **({"after": cursor} if cursor else {})}
        page = client.get(f"/api/runs/{run_id}/logs", params=params).raise_for_status().json()
        if not page["lines"]:
            return found
        found += page["lines"]
        cursor = page["next_cursor"]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"it is not so within a minute: {what}"
        time.sleep(0.05)
