"""A controller, a fake engine and the service that submits to them, on one database and one clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from windlass.controller.lease import ShardLeases
from windlass.controller.loop import Controller
from windlass.core.resources import Node
from windlass.db.database import Database
from windlass.engines.contract import Engine
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.scheduling.rules import Rules
from windlass.tenancy.prices import PriceBook
from windlass.testing.clock import FakeClock
from windlass.testing.fake_engine import FakeCluster, FakeEngine
from windlass.wire import runs as wire

NODE = Node(engine="fake", name="n", cpus=4, memory_bytes=10**9, gpus=2)


@dataclass
class Stage:
    db: Database
    service: RunService
    seal: Seal
    clock: FakeClock
    cluster: FakeCluster = field(default_factory=lambda: FakeCluster(nodes=(NODE,)))
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        self.engine = FakeEngine(self.clock, cluster=self.cluster)
        self.engines: dict[str, Engine] = {"fake": self.engine}
        self.controller = self.new_controller()
        assert self.controller.activate()

    def new_controller(self, *, shards: int = 1) -> Controller:
        return Controller(
            self.db,
            lambda _nudge: self.engines,
            self.seal,
            self.clock,
            ShardLeases(shards, monotonic=self.clock.monotonic),
            prices=PriceBook(),
            rules=self.rules,
            jitter=random.Random(0),
        )

    def submit(self, command: str = "serve", secrets: dict[str, str] | None = None, **spec: Any) -> str:
        request = wire.SubmitRequest(
            spec={"command": command, "code": None, "secrets": sorted(secrets or ()), **spec}, secrets=secrets or {}
        )
        self.clock.advance(0.001)  # the order of submission is the order of the queue
        return self.service.submit(request, idempotency_key=None, user=None).id

    def pass_time(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.controller.tick()

    def state(self, run_id: str) -> str:
        return self.service.view(run_id).state

    def kinds(self, run_id: str) -> list[str]:
        return [event.kind for event in self.service.events(run_id, after=0).events]
