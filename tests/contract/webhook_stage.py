"""Webhooks, a receiver that remembers, and servers whose threads are the test itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from windlass.db.database import Database
from windlass.registry.service import RegistryService
from windlass.runs.sealing import Seal
from windlass.testing.clock import FakeClock
from windlass.webhooks import outbox
from windlass.webhooks.addresses import WebhookRules
from windlass.webhooks.deliverer import Deliverer
from windlass.webhooks.sending import Letter
from windlass.webhooks.service import WebhookService
from windlass.webhooks.types import Delivery, Reply, Webhook

RULES = WebhookRules(schemes=("https",), allow_private=True, timeout_s=10.0)
EVENTS = ("registered_model.created", "model_version.created")


@dataclass
class FakeReceiver:
    """Remembers what it was sent and answers what it was told to, then 200."""

    replies: list[Reply] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def send(self, letter: Letter, *, at: float) -> Reply:
        self.letters.append(letter)
        self.times.append(at)
        return self.replies.pop(0) if self.replies else Reply(status=200)

    def told(self) -> list[str]:
        return [json.loads(letter.body)["data"]["name"] for letter in self.letters]


@dataclass
class Server:
    """A deliverer whose threads are the test itself."""

    database: Database
    clock: FakeClock
    seal: Seal
    receiver: FakeReceiver
    name: str = "one"

    def __post_init__(self) -> None:
        self.deliverer = Deliverer(
            self.database,
            self.clock,
            seal=self.seal,
            sender=self.receiver,
            rules=RULES,
            holder=self.name,
            monotonic=self.clock.monotonic,
        )

    def claim(self) -> list[Delivery]:
        return self.deliverer.take()[0]

    def deliver(self) -> int:
        claimed = self.claim()
        for delivery in claimed:
            self.deliverer.deliver_claimed(delivery)
        return len(claimed)


def add_hook(hooks: WebhookService, name: str = "hook", secret: str | None = None) -> Webhook:
    return hooks.create(name=name, url="https://example.com/hook", events=EVENTS, secret=secret)


def add_model(registry: RegistryService, name: str = "m") -> None:
    registry.create_model(name, tags={}, description=None)


def states(database: Database, hook: Webhook) -> list[str]:
    with database.read() as tx:
        return [str(row["state"]) for row in outbox.load_states(tx, hook.id)]
