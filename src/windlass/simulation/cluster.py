"""The cluster of a replay, from a file:

nodes:
  - {count: 16, gpus: 8, gpu_type: h100, price_per_hour: 31.2}
projects:
  vision: {weight: 3, quota: {gpu: 32}}
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from windlass.core.accelerators import is_tpu
from windlass.core.errors import InvalidConfig
from windlass.scheduling.core.types import NodeState, Project

ENGINE = "simulated"
_PLENTY = 1 << 50  # traces tell of GPUs only: nothing else is ever short


class NodeGroup(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = Field(1, ge=1)
    gpus: int = Field(8, ge=1)
    gpu_type: str | None = None
    price_per_hour: float = Field(0.0, ge=0)
    topology: tuple[str, ...] = ()


class ProjectShare(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    parent: str | None = None
    weight: float = Field(1.0, gt=0)
    quota: dict[str, float] = {}
    limit: dict[str, float] = {}


class Cluster(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: tuple[NodeGroup, ...] = Field(min_length=1)
    projects: dict[str, ProjectShare] = {}

    @property
    def gpus(self) -> int:
        return sum(group.count * group.gpus for group in self.nodes)

    @property
    def usd_per_gpu_hour(self) -> float:
        return math.fsum(group.count * group.price_per_hour for group in self.nodes) / self.gpus

    def with_gpus(self, gpus: int) -> Cluster:
        """Of the same kinds of nodes, in about the same proportion, as many as have at least so many GPUs."""
        factor = gpus / self.gpus
        groups = [group.model_copy(update={"count": math.ceil(group.count * factor)}) for group in self.nodes]
        return self.model_copy(update={"nodes": tuple(groups)})

    def node_states(self) -> tuple[NodeState, ...]:
        found = []
        for number, group in enumerate(self.nodes):
            found += [
                NodeState(
                    engine=ENGINE,
                    name=f"node-{number}-{each}",
                    cpus=float(_PLENTY),
                    memory_bytes=_PLENTY,
                    gpus=group.gpus,
                    gpu_type=None if is_tpu(group.gpu_type) else group.gpu_type,  # traces do not tell them apart
                    topology=group.topology,
                    price_per_hour=group.price_per_hour,
                )
                for each in range(group.count)
            ]
        return tuple(found)

    def shares(self) -> tuple[Project, ...]:
        return tuple(
            Project(name=name, parent=each.parent, weight=each.weight, quota=each.quota, limit=each.limit)
            for name, each in self.projects.items()
        )


def uniform_cluster(gpus: int, *, per_node: int = 8) -> Cluster:
    return Cluster(nodes=(NodeGroup(count=math.ceil(gpus / per_node), gpus=per_node),))


def read_cluster(path: Path) -> Cluster:
    try:
        data: Any = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidConfig([f"{path}: cannot be read: {error}"]) from error
    if not isinstance(data, dict):
        raise InvalidConfig([f"{path.name}: a cluster is a mapping with nodes, not {type(data).__name__}"])
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise InvalidConfig(
            [f"{path.name}: {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()],
            hint="keys: nodes (count, gpus, gpu_type, price_per_hour, topology), "
            "projects (parent, weight, quota, limit)",
        ) from error
