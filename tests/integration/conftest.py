"""An API on a database of its own, for tests of what it answers; and a local engine without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from httpx import Client

from tests.integration.local_runs import LocalRuns
from tests.mlflow_programs import Program, environment, run_program
from windlass.server.compose import Parts, compose
from windlass.server.homefolder import prepare
from windlass.server.settings import Role, Settings
from windlass.testing.servers import serving


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    home = tmp_path / "home"
    prepare(home)
    return Settings(home=home, database_url=database_url, role=Role.API)


@pytest.fixture
def parts(settings: Settings) -> Iterator[Parts]:
    parts = compose(settings)
    yield parts
    parts.db.close()


@pytest.fixture
def api(parts: Parts) -> Iterator[Client]:
    with serving(parts) as client:
        yield client


@pytest.fixture
def program(parts: Parts, api: Client, tmp_path: Path) -> Program:
    """Runs a program that has MLflow's `client`, with the server's token, and gives back its `result`."""
    environ = environment(str(api.base_url), parts.services.token)
    return lambda text: run_program(text, environ, tmp_path)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path)
    yield runs
    runs.clean_up()
    assert runs.processes() == []
