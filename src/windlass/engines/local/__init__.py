"""The local engine: runs attempts as processes of this machine, under supervisors that outlive the server."""

from windlass.engines.contract import EngineContext
from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.warmpool import stop_launchers
from windlass.wire.engines import LocalConfig

__all__ = ["LocalEngine", "open_engine", "stop_launchers"]


def open_engine(config: LocalConfig, context: EngineContext) -> LocalEngine:
    return LocalEngine(
        context.home,
        context.home / "blobs",
        notify=context.notify,
        clock=context.clock,
        name=context.name,
        code=context.code,
        nodes=config.nodes,
        warm=config.warm,
    )
