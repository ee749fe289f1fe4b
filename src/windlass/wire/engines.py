"""The engines a server can be given: one model per type, told apart by `type`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from windlass.wire.kubernetes import KubernetesConfig
from windlass.wire.ray import RayConfig
from windlass.wire.slurm import SlurmConfig
from windlass.wire.strict import StrictModel


class LocalConfig(StrictModel):
    """Processes of the server's own machine."""

    type: Literal["local"]
    nodes: int = Field(1, ge=1, le=64, description="virtual nodes that the machine is divided into")
    warm: bool = Field(True, description="keep interpreters with PyTorch loaded")
    spot_notices: Literal["aws", "gcp", "azure"] | None = Field(
        None, description="whose machine this is, if it can be taken away: it is asked for its notices"
    )


EngineConfig = Annotated[LocalConfig | RayConfig | SlurmConfig | KubernetesConfig, Field(discriminator="type")]
