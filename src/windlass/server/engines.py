"""Opening the configured engines. Each type's package is imported only if it is asked for: they bring heavy clients."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from windlass.engines.contract import Engine, EngineContext
from windlass.wire.engines import EngineConfig

# Every package has `open_engine(config, context) -> Engine`.
PACKAGES = {
    "local": "windlass.engines.local",
    "ray": "windlass.engines.ray",
    "slurm": "windlass.engines.slurm",
    "kubernetes": "windlass.engines.kubernetes",
}


def open_engines(configs: Mapping[str, EngineConfig], context_of: Callable[[str], EngineContext]) -> dict[str, Engine]:
    """All of them or none: what was opened before one refused is closed again."""
    opened: dict[str, Engine] = {}
    try:
        for name, config in configs.items():
            package = importlib.import_module(PACKAGES[config.type])
            opened[name] = package.open_engine(config, context_of(name))
    except BaseException:
        for engine in opened.values():
            engine.close()
        raise
    return opened
