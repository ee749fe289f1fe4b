"""The processes of a plan as one mesh: pipeline × data × shard × tensor, the last varying fastest."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from windlass.core.plan import Plan

DIMENSIONS = ("pipeline", "data", "shard", "tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one process stands in the mesh of a sized plan."""

    pipeline: int
    data: int
    shard: int
    tensor: int
    data_rank: int  # which part of every batch it reads
    data_world: int


def place_of(rank: int, plan: Plan) -> Place:
    rest, tensor = divmod(rank, plan.tensor)
    rest, shard = divmod(rest, plan.shard)
    pipeline, data = divmod(rest, plan.data or 1)
    return Place(
        pipeline=pipeline,
        data=data,
        shard=shard,
        tensor=tensor,
        data_rank=data * plan.shard + shard,
        data_world=plan.copies,
    )


def build_mesh(plan: Plan, device_type: str) -> DeviceMesh | None:
    """The mesh of a sized plan; None for a process alone. Every process of the run must call it."""
    if plan.world_size == 1:
        return None
    return _mesh(device_type, (plan.pipeline, plan.data or 1, plan.shard, plan.tensor))


# One per layout and process: torch keeps what it learned about a mesh under its layout, so a second one of the same
# layout, with groups of its own, would be taken for the first.
@functools.cache
def _mesh(device_type: str, sizes: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh(device_type, sizes, mesh_dim_names=DIMENSIONS)


def copies_mesh(mesh: DeviceMesh, plan: Plan) -> DeviceMesh:
    """The processes that hold the same part of the model: copies of it, and parts of each copy's state."""
    return mesh["data", "shard"] if (plan.data or 1) > 1 else mesh["shard"]


def group_of(mesh: DeviceMesh, dimension: str) -> Any:
    return mesh.get_group(dimension)
