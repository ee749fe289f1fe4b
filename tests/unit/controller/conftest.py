from __future__ import annotations

import pytest

from tests.unit.controller.stage import Stage
from windlass.db.database import Database
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.testing.clock import FakeClock


@pytest.fixture
def stage(database: Database, service: RunService, seal: Seal, clock: FakeClock) -> Stage:
    return Stage(database, service, seal, clock)
