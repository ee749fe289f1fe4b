"""An API on a database of its own, for tests of what it answers; and a local engine without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from httpx import Client

from tests.integration.local_runs import LocalRuns
from windlass.server.compose import compose
from windlass.server.homefolder import prepare
from windlass.server.settings import Role, Settings
from windlass.testing.servers import serving


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    home = tmp_path / "home"
    prepare(home)
    return Settings(home=home, database_url=database_url, role=Role.API)


@pytest.fixture
def api(settings: Settings) -> Iterator[Client]:
    parts = compose(settings)
    with serving(parts) as client:
        yield client
    parts.db.close()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path)
    yield runs
    runs.clean_up()
    assert runs.processes() == []
