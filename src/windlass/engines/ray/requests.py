"""From a Launch to what is asked of Ray: a placement group and an actor per node. Pure, and plain data: it travels to
the driver process as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from windlass.engines.contract import Launch
from windlass.engines.remote.bootstrap import render_bootstrap, render_node_environ
from windlass.wire.ray import RayOptions


def prefix(namespace: str, engine: str) -> str:
    """What the names of all groups and actors of an engine begin with. Placement groups have no namespace in Ray, so it
    is part of their name: two servers on one cluster must not take each other's groups for their own."""
    return f"{namespace}:{engine}:"


def group_name(prefix: str, attempt_id: str) -> str:
    return f"{prefix}{attempt_id}"


def actor_name(group: str, node_rank: int) -> str:
    return f"{group}:{node_rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorRequest:
    """One node's part; `environ` says to its relay who it is."""

    name: str
    node: str  # the node's name as the scheduler knows it
    bundle: Mapping[str, float]
    environ: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """A gang: all of its bundles on the nodes they name, or none."""

    name: str
    actors: tuple[ActorRequest, ...]
    program: str
    runtime_env: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GroupRequest:
        return cls(**{**data, "actors": tuple(ActorRequest(**actor) for actor in data["actors"])})


def render_request(
    launch: Launch, *, group: str, options: RayOptions, server_url: str, tokens: Sequence[str]
) -> GroupRequest:
    actors = []
    for rank, (share, token) in enumerate(zip(launch.placement.shares, tokens, strict=True)):
        gpus = len(share.gpu_indices) * share.gpu_part
        accelerators = {"TPU" if launch.tpus else "GPU": gpus}
        bundle = {"CPU": share.cpus, **accelerators, "memory": share.memory_bytes, **options.resources}
        actors.append(
            ActorRequest(
                name=actor_name(group, rank),
                node=share.node,
                bundle={name: float(amount) for name, amount in bundle.items() if amount},
                environ=render_node_environ(
                    server_url=server_url, attempt_id=launch.attempt_id, node_rank=rank, token=token
                ),
            )
        )
    return GroupRequest(name=group, actors=tuple(actors), program=render_bootstrap(), runtime_env=options.runtime_env)
