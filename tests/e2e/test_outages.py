"""Parts that Windlass depends on go away and come back: no run is lost or started again, and what cannot be known is
not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.sites import Installation, LocalSite, Site, opened_site
from tests.integration.away import await_that
from windlass.client import Client, Run
from windlass.core.errors import Unavailable
from windlass.testing.postgres import PostgresServer, running_postgres
from windlass.testing.s3 import S3Server

pytestmark = pytest.mark.timeout(240)


class Gate:
    """Runs that go on until somebody opens it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "gate"

    def open(self) -> None:
        self._path.touch()

    def submit(self, client: Client, **keys: Any) -> Run:
        command = f"echo started; while [ ! -e {self._path} ]; do sleep 0.1; done; echo done"
        return client.submit(command=command, code=None, workdir="/tmp", resources={"cpus": 0.5}, **keys)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def started(run: Run) -> bool:
    return run.refresh().state == "running"


def check_unharmed(*runs: Run) -> None:
    for run in runs:
        run.wait(timeout=90)
        assert (run.state, len(run.attempts())) == ("succeeded", 1), run.events()
        assert [line.text for line in run.logs()] == ["started", "done"]


# ---- an engine's own control plane ---------------------------------------------------------------------------------


@pytest.fixture(
    params=[
        pytest.param("slurm", marks=pytest.mark.slurm),
        pytest.param("kubernetes", marks=pytest.mark.kubernetes),
    ]
)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with opened_site(request.param, request) as site:
        yield site


def test_an_engine_that_cannot_be_reached(site: Site, gate: Gate, tmp_path: Path) -> None:
    installation = Installation(tmp_path, site)
    try:
        with installation.client() as client:
            before = gate.submit(client, name="before")
            await_that(lambda: started(before), lambda: str(before.events()), timeout_s=60)

            def is_unreachable() -> bool:
                return client.cluster().engines[0].unreachable_since is not None

            with site.outage():
                await_that(is_unreachable, lambda: str(client.cluster().engines), timeout_s=60)
                during = gate.submit(client, name="during")
                assert during.refresh().state == "queued"
                assert "cannot be reached" in " ".join(during.why().details)
                assert before.refresh().state == "running"
                assert len(before.attempts()) == 1
            await_that(lambda: not is_unreachable(), lambda: str(client.cluster().engines), timeout_s=60)
            await_that(lambda: started(during), lambda: str(during.events()), timeout_s=60)
            assert before.refresh().state == "running"
            gate.open()
            check_unharmed(before, during)
            assert before.attempts()[0].unknown_since is None
    finally:
        installation.close()


# ---- the database --------------------------------------------------------------------------------------------------


@pytest.fixture
def durable_postgres(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """What is committed to it survives a crash, as everybody expects but most tests do not need."""
    with running_postgres(durable=True) as server:
        yield server


@pytest.mark.postgres
def test_a_database_that_restarts(durable_postgres: PostgresServer, gate: Gate, tmp_path: Path) -> None:
    url = durable_postgres.create_database()
    installation = Installation(tmp_path, LocalSite(), environ={"WINDLASS_DATABASE_URL": url})
    try:
        with installation.client() as client:
            before = gate.submit(client)
            await_that(lambda: started(before), lambda: str(before.events()), timeout_s=60)
            for _ in range(3):
                durable_postgres.restart()
            during = gate.submit(client)
            await_that(lambda: started(during), lambda: str(during.events()), timeout_s=60)
            gate.open()
            check_unharmed(before, during)
    finally:
        installation.close()


# ---- the bucket ----------------------------------------------------------------------------------------------------


def test_a_bucket_that_refuses(s3_server: S3Server, gate: Gate, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "hello.py").write_text("print('hello')\n")
    blobs = s3_server.section("outage").model_dump(mode="json", exclude_defaults=True)
    installation = Installation(tmp_path, LocalSite(), config={"blobs": blobs}, environ=s3_server.environ)
    try:
        with installation.client() as client:
            before = gate.submit(client)
            await_that(lambda: started(before), lambda: str(before.events()), timeout_s=60)
            s3_server.stop()
            with pytest.raises(Unavailable) as refused:
                client.submit(script="hello.py", code=code)
            assert refused.value.code == "unavailable"
            assert [run.id for run in client.list()] == [before.id], "a refused submission left a run behind"
            s3_server.start()
            after = client.submit(script="hello.py", code=code)
            assert after.wait(timeout=60).state == "succeeded"
            gate.open()
            check_unharmed(before)
    finally:
        installation.close()
