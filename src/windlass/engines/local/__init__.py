"""The local engine: runs attempts as processes of this machine, under supervisors that outlive the server."""

from __future__ import annotations

import os

from windlass.engines.contract import Engine, EngineContext
from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.warmpool import stop_launchers
from windlass.wire.engines import LocalConfig

__all__ = ["LocalEngine", "open_engine", "stop_launchers"]


def open_engine(config: LocalConfig, context: EngineContext) -> Engine:
    engine = LocalEngine(
        context.home,
        context.home / "blobs",
        notify=context.notify,
        clock=context.clock,
        name=context.name,
        code=context.code,
        nodes=config.nodes,
        labels=config.labels,
        price_per_hour=config.price_per_hour,
        spot=config.spot_notices is not None,
        warm=config.warm,
    )
    if config.spot_notices is None:
        return engine
    from windlass.engines.local.spot import CloudNotices, SpotEngine  # HTTP takes long to load, and most do not need it

    return SpotEngine(engine, CloudNotices(config.spot_notices, os.environ, context.notify))
