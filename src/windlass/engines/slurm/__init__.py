"""The Slurm engine: runs attempts as Slurm jobs over a shared folder, with nothing but Slurm's own commands."""

from windlass.engines.contract import EngineContext
from windlass.engines.slurm.engine import SlurmEngine
from windlass.wire.slurm import SlurmConfig

__all__ = ["SlurmEngine", "open_engine"]


def open_engine(config: SlurmConfig, context: EngineContext) -> SlurmEngine:
    return SlurmEngine(config, context)
