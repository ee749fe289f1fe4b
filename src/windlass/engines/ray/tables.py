"""What Ray says of itself, in our words: nodes, placement groups and actors as of one look. Plain data, sent by the
driver process as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node of the cluster; of dead ones, only those that an actor of ours was on."""

    id: str
    name: str  # as it was started; several raylets of one machine may share it
    total: Mapping[str, float]
    available: Mapping[str, float]
    labels: Mapping[str, str]
    alive: bool = True
    draining: bool = False
    drain_deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RayGroup:
    """A placement group that has not been removed."""

    name: str
    state: str  # PENDING, PREPARED, CREATED, RESCHEDULING
    bundles: tuple[tuple[str, Mapping[str, float]], ...]  # (node id or "", amounts), in order


@dataclass(frozen=True, slots=True, kw_only=True)
class RayActor:
    name: str
    state: str  # DEPENDENCIES_UNREADY, PENDING_CREATION, ALIVE, RESTARTING, DEAD
    node_id: str = ""
    ended_at: float | None = None
    cause: str = ""  # why it died: Ray's name for the kind of death
    death: str = ""  # and its sentence about it


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    nodes: tuple[RayNode, ...]
    groups: Mapping[str, RayGroup]  # ours, by name
    actors: Mapping[str, RayActor]  # ours, by name; the newest of each, dead ones only of followed groups
    followed: tuple[str, ...] = ()  # groups

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tables:
        return cls(
            nodes=tuple(RayNode(**node) for node in data["nodes"]),
            groups={
                name: RayGroup(**{**group, "bundles": tuple((at, amounts) for at, amounts in group["bundles"])})
                for name, group in data["groups"].items()
            },
            actors={name: RayActor(**actor) for name, actor in data["actors"].items()},
            followed=tuple(data["followed"]),
        )


def node_names(tables: Tables) -> dict[str, str]:
    """Id -> name. A name that several living nodes share is made unique by what is unique about them; a dead node
    does not take its name from the one that came after it."""
    shared = Counter(node.name for node in tables.nodes if node.alive)
    return {
        node.id: f"{node.name}-{node.id[:8]}" if node.alive and shared[node.name] > 1 else node.name
        for node in tables.nodes
    }
