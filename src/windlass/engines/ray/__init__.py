"""The Ray engine. `ray` itself is imported by the driver process alone."""

from __future__ import annotations

import importlib.util
import sys

from windlass.core.errors import InvalidInput
from windlass.engines.contract import Engine, EngineContext
from windlass.engines.ray.engine import RayEngine
from windlass.engines.ray.link import Link
from windlass.engines.ray.requests import prefix
from windlass.wire.ray import RayConfig

__all__ = ["RayEngine", "open_engine"]


def open_engine(config: RayConfig, context: EngineContext) -> Engine:
    if importlib.util.find_spec("ray") is None:
        raise InvalidInput(
            f"engine {context.name} is of type ray, and Ray is not installed here",
            hint="pip install 'windlass[ray]', in the version that the cluster has",
        )
    folder = context.home / "engines" / context.name
    folder.mkdir(parents=True, exist_ok=True)
    names = prefix(config.namespace, context.name)
    command = [
        sys.executable,
        "-m",
        "windlass.engines.ray.driver",
        f"--address={config.address}",
        f"--namespace={config.namespace}",
        f"--prefix={names}",
        "--folder",
        str(folder),
    ]
    command += [f"--cpus={config.cpus}"] if config.cpus is not None else []
    command += [f"--gpus={config.gpus}"] if config.gpus is not None else []
    link = Link(command, log_file=folder / "driver.log", notify=context.notify)
    # A head of our own is this machine: what the submitter finds there, ranks find too.
    return RayEngine(
        context,
        link,
        prefix=names,
        defaults=config.defaults,
        inherit_path=config.address == "local",
        prices=config.node_prices,
        spot_nodes=config.spot_nodes,
    )
