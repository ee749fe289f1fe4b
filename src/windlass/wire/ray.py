"""What can be said about Ray: the `ray` section of a spec, and an engine in the server's config."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from windlass.wire.strict import StrictModel

# Those that a run asks for in `resources`; asked for twice, they would be counted twice.
_OURS = ("CPU", "GPU", "TPU", "memory", "object_store_memory")

Amount = Annotated[float, Field(gt=0)]


class RayOptions(StrictModel):
    """The spec's `ray:` section; what is given here wins over the engine's defaults."""

    runtime_env: dict[str, Any] | None = Field(
        None, description="Ray's own description of an environment (pip, conda, working_dir ...); it costs seconds"
    )
    resources: dict[str, Amount] = Field(default={}, description="custom Ray resources that every node must hold")

    @field_validator("resources")
    @classmethod
    def _are_custom(cls, resources: dict[str, float]) -> dict[str, float]:
        for name in resources:
            if name in _OURS:
                raise ValueError(f"'{name}' is no custom resource; ask for it in the spec's `resources`")
        return resources


class RayConfig(StrictModel):
    """An engine of this type under `engines:` in the server's config."""

    type: Literal["ray"]
    address: str = Field(
        min_length=1,
        description="`host:6379` of a cluster that this machine is a node of, `ray://host:10001` of any other, "
        "or `local`: a head of our own on this machine, which outlives the server",
    )
    namespace: str = Field("windlass", min_length=1, description="Ray's namespace for our actors")
    cpus: int | None = Field(None, ge=1, description="with `local`: how many CPUs the head offers; default all")
    gpus: int | None = Field(None, ge=0, description="with `local`: how many GPUs the head offers; default all")
    node_prices: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="dollars an hour of a node by a label of it (`ray.io/node-group=h100`), a custom resource, or a "
        "pattern of its name; the first that fits counts, and the cheapest nodes are used first",
    )
    spot_nodes: tuple[str, ...] = Field(
        (), description="of nodes that can be taken away, named in the same way, beside `ray.io/market-type=spot`"
    )
    defaults: RayOptions = RayOptions()
