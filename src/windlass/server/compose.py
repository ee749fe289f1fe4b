"""The composition root: the only place that knows which parts there are and wires them together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi import FastAPI

from windlass.api.app import create_app
from windlass.api.context import Services
from windlass.blobs.local import LocalBlobs
from windlass.controller.lease import ShardLeases, controller_state
from windlass.controller.loop import Controller
from windlass.core.clock import Clock, SystemClock
from windlass.db.database import Database
from windlass.db.faults import CommitFault
from windlass.db.migrate import migrate
from windlass.engines.contract import Engine
from windlass.nodes.service import NodeService
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.server.homefolder import load_token
from windlass.server.settings import Role, Settings

OpenEngines = Callable[[Callable[[], None]], Mapping[str, Engine]]


@dataclass(slots=True, kw_only=True)
class Parts:
    db: Database
    services: Services
    app: FastAPI | None
    controller: Controller | None


def compose(settings: Settings, *, open_engines: OpenEngines | None = None, clock: Clock | None = None) -> Parts:
    clock = clock or SystemClock()
    db = Database(settings.database_url, fault=CommitFault.from_environ(os.environ))
    migrate(db)
    blobs = LocalBlobs(settings.home / "blobs")
    seal = Seal(settings.home / "secret.key")
    controller = None
    holder = None
    if settings.role is not Role.API:
        lease = ShardLeases(monotonic=time.monotonic)
        holder = lease.holder
        engines = open_engines or (lambda nudge: open_local_engine(settings, blobs, clock, nudge))
        controller = Controller(db, engines, seal, clock, lease, prices=settings.prices)

    def state_of_controller() -> str:
        with db.read() as tx:
            return controller_state(tx, holder)

    runs = RunService(
        db,
        blobs,
        seal,
        clock,
        prices=settings.prices,
        runs_dir=settings.home / "runs",
        nudge=controller.nudge if controller else lambda: None,
    )
    services = Services(
        db=db,
        blobs=blobs,
        runs=runs,
        nodes=NodeService(db, blobs, seal, clock, nudge=controller.nudge if controller else lambda: None),
        clock=clock,
        token=load_token(settings.home, dict(os.environ)) if settings.auth else None,
        home=str(settings.home),
        started_at=clock.now(),
        controller_state=state_of_controller,
    )
    app = create_app(services) if settings.role is not Role.CONTROLLER else None
    return Parts(db=db, services=services, app=app, controller=controller)


def open_local_engine(
    settings: Settings, blobs: LocalBlobs, clock: Clock, nudge: Callable[[], None]
) -> Mapping[str, Engine]:
    from windlass.engines.local.engine import LocalEngine

    engine = LocalEngine(
        settings.home, blobs.root, notify=nudge, clock=clock, nodes=settings.local_nodes, warm=settings.warm
    )
    return {engine.name: engine}
