"""What the scheduler sees and what it decides. No I/O, no clock: everything comes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from windlass.core.resources import Node, Placement, Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    run_id: str
    name: str
    resources: Resources
    priority: int
    queued_at: float
    engines: frozenset[str] | None = None  # the only ones it may go to; None: any


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes of one engine that differ in nothing but their names."""

    node: Node  # the first of them
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    nodes: tuple[Node, ...]
    held: Mapping[str, Placement]  # run id -> what its live attempt holds
    waiting: tuple[WaitingRun, ...]  # those that may start now; backoffs that are still running are not here
    away: Mapping[str, str] = field(default_factory=dict)  # engine -> why it cannot be asked; none of its nodes is here


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDecision:
    run_id: str
    placement: Placement
