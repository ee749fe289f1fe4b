"""What the scheduler sees and what it decides. No I/O, no clock: everything comes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from windlass.core.resources import Node, Placement, Resources

NodeKey = tuple[str, str]  # engine and name


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """Why a node is not to be used, and until when."""

    reason: str
    since: float
    until: float | None  # None: until somebody gives it back
    times: int = 1  # in a row
    by_hand: bool = False
    run_id: str | None = None

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    run_id: str
    name: str
    resources: Resources
    priority: int
    queued_at: float
    engines: frozenset[str] | None = None  # the only ones it may go to; None: any
    most_nodes: int | None = None  # an elastic run takes up to so many, and `resources.nodes` at least
    # Where its attempt before was, by node rank: what it left in the memory of these nodes is worth going back to.
    before: Placement | None = None


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
    aside: Mapping[NodeKey, Aside] = field(default_factory=dict)  # nodes that something broke on


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDecision:
    run_id: str
    placement: Placement
