"""Every engine in turn, and a server that uses it; tests of one engine alone have fixtures of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sites import ENGINES, Installation, Site, opened_site


@pytest.fixture(params=ENGINES)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with opened_site(request.param, request) as site:
        yield site


@pytest.fixture
def installation(site: Site, tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path, site)
    yield installation
    installation.close()
