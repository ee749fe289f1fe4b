"""The engines a server can be given: one model per type, told apart by `type`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from windlass.wire.kubernetes import KubernetesConfig
from windlass.wire.ray import RayConfig
from windlass.wire.slurm import SlurmConfig
from windlass.wire.strict import StrictModel

LabelText = Annotated[str, Field(pattern=r"^[^\x00=]*$", max_length=317)]


class LocalConfig(StrictModel):
    """Processes of the server's own machine."""

    type: Literal["local"]
    nodes: int = Field(1, ge=1, le=64, description="virtual nodes that the machine is divided into")
    warm: bool = Field(True, description="keep interpreters with PyTorch loaded")
    labels: dict[LabelText, LabelText] = Field(
        default_factory=dict, description="of its nodes, for specs that ask for them, e.g. {room: lab}"
    )
    price_per_hour: float = Field(0.0, ge=0, allow_inf_nan=False, description="of the machine in dollars, if known")
    spot_notices: Literal["aws", "gcp", "azure"] | None = Field(
        None, description="whose machine this is, if it can be taken away: it is asked for its notices"
    )


EngineConfig = Annotated[LocalConfig | RayConfig | SlurmConfig | KubernetesConfig, Field(discriminator="type")]
