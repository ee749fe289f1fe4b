from __future__ import annotations

import pytest

from tests.contract.webhook_stage import RULES, FakeReceiver, Server
from windlass.db.database import Database
from windlass.registry.service import RegistryService
from windlass.runs.sealing import Seal
from windlass.testing.clock import FakeClock
from windlass.webhooks.service import WebhookService


@pytest.fixture
def receiver() -> FakeReceiver:
    return FakeReceiver()


@pytest.fixture
def hooks(database: Database, clock: FakeClock, seal: Seal, receiver: FakeReceiver) -> WebhookService:
    return WebhookService(db=database, clock=clock, seal=seal, sender=receiver, rules=RULES)


@pytest.fixture
def registry(database: Database, clock: FakeClock) -> RegistryService:
    return RegistryService(db=database, clock=clock)


@pytest.fixture
def server(database: Database, clock: FakeClock, seal: Seal, receiver: FakeReceiver) -> Server:
    return Server(database, clock, seal, receiver)
