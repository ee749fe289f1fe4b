"""Who starts now, and where: `decide_placements(snapshot)`. Pure and deterministic.

The order is priority, then time of queueing. A gang gets all its nodes or none; a run that does not fit yet keeps those
behind it waiting on the engines that it may go to, so nothing is overtaken for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nsmallest

from windlass.core.resources import Node, NodeShare, Placement, Resources
from windlass.scheduling.types import ClusterSnapshot, PlacementDecision, WaitingRun

_EPSILON = 1e-9


@dataclass(slots=True, kw_only=True)
class FreeNode:
    """A node with what is left of it, while one pass hands it out."""

    node: Node
    cpus: float
    memory_bytes: int
    gpu_indices: list[int] = field(default_factory=list)

    def fits(self, wanted: Resources, engines: frozenset[str] | None = None) -> bool:
        """Whether there is room for one node's share; says the same as `shortage`, sooner."""
        return (
            (engines is None or self.node.engine in engines)
            and wanted.cpus <= self.cpus + _EPSILON
            and wanted.memory_bytes <= self.memory_bytes
            and wanted.gpus <= len(self.gpu_indices)
            and not (wanted.gpu_type and wanted.gpus and wanted.gpu_type != self.node.gpu_type)
        )

    def shortage(self, wanted: Resources) -> list[str]:
        """What is missing here for one node's share, in words; empty when it fits."""
        missing = []
        if wanted.cpus > self.cpus + _EPSILON:
            missing.append(f"{wanted.cpus:g} CPU ({self.cpus:g} of {self.node.cpus:g} free)")
        if wanted.memory_bytes > self.memory_bytes:
            missing.append(f"{_gb(wanted.memory_bytes)} memory ({_gb(self.memory_bytes)} free)")
        if wanted.gpu_type and wanted.gpus and wanted.gpu_type != self.node.gpu_type:
            missing.append(f"GPUs of type {wanted.gpu_type} (these are {self.node.gpu_type or 'none'})")
        if wanted.gpus > len(self.gpu_indices):
            missing.append(f"{wanted.gpus} GPU ({len(self.gpu_indices)} of {self.node.gpus} free)")
        return missing

    def take(self, wanted: Resources) -> NodeShare:
        share = NodeShare(
            node=self.node.name,
            cpus=wanted.cpus,
            memory_bytes=wanted.memory_bytes,
            gpu_indices=tuple(self.gpu_indices[: wanted.gpus]),
        )
        self.hold(share)
        return share

    def hold(self, share: NodeShare) -> None:
        self.cpus -= share.cpus
        self.memory_bytes -= share.memory_bytes
        self.gpu_indices = [index for index in self.gpu_indices if index not in share.gpu_indices]


def decide_placements(snapshot: ClusterSnapshot) -> list[PlacementDecision]:
    free = free_nodes(snapshot)
    decisions = []
    for run in in_order(snapshot.waiting):
        placement = _place_gang(run, free)
        if placement is not None:
            decisions.append(PlacementDecision(run_id=run.run_id, placement=placement))
        elif run.engines is None:
            break
        else:
            free = [node for node in free if node.node.engine not in run.engines]
    return decisions


def in_order(waiting: tuple[WaitingRun, ...]) -> list[WaitingRun]:
    return sorted(waiting, key=lambda run: (-run.priority, run.queued_at, run.run_id))


def free_nodes(snapshot: ClusterSnapshot) -> list[FreeNode]:
    free = {
        (node.engine, node.name): FreeNode(
            node=node, cpus=node.cpus, memory_bytes=node.memory_bytes, gpu_indices=list(range(node.gpus))
        )
        for node in snapshot.nodes
    }
    for placement in snapshot.held.values():
        for share in placement.shares:
            if node := free.get((placement.engine, share.node)):
                node.hold(share)
    return list(free.values())


def why_never(wanted: Resources, nodes: tuple[Node, ...], engines: frozenset[str] | None = None) -> str | None:
    """Why this request could not be met even by an idle cluster; None if it could."""
    nodes = tuple(node for node in nodes if engines is None or node.engine in engines)
    idle = free_nodes(ClusterSnapshot(nodes=nodes, held={}, waiting=()))
    by_engine: dict[str, int] = {}
    for node in idle:
        by_engine[node.node.engine] = by_engine.get(node.node.engine, 0) + node.fits(wanted)
    if any(count >= wanted.nodes for count in by_engine.values()):
        return None
    best = max(by_engine.values(), default=0)
    largest = max(idle, key=lambda n: (n.node.gpus, n.node.cpus, n.node.memory_bytes), default=None)
    if largest is None:
        return f"engine {' or '.join(sorted(engines))} has no nodes" if engines else "there are no nodes"
    if best:
        return f"asks for {wanted.nodes} nodes of {_one(wanted)}, and only {best} can offer that"
    have = f"{largest.node.cpus:g} CPU, {_gb(largest.node.memory_bytes)} memory, {largest.node.gpus} GPU"
    if largest.node.gpu_type:
        have += f" ({largest.node.gpu_type})"
    return f"asks for {_one(wanted)} on a node, and the largest node ({largest.node.name}) has {have}"


def _place_gang(run: WaitingRun, free: list[FreeNode]) -> Placement | None:
    wanted = run.resources
    by_engine: dict[str, list[FreeNode]] = {}
    for node in free:
        if node.fits(wanted, run.engines):
            by_engine.setdefault(node.node.engine, []).append(node)
    for engine, fitting in by_engine.items():
        if len(fitting) < wanted.nodes:
            continue
        # Best fit: the fullest nodes first, so that large holes stay whole.
        chosen = nsmallest(
            wanted.nodes, fitting, key=lambda n: (len(n.gpu_indices), n.cpus, n.memory_bytes, n.node.name)
        )
        return Placement(engine=engine, shares=tuple(node.take(wanted) for node in chosen))
    return None


def _one(wanted: Resources) -> str:
    return Resources(
        cpus=wanted.cpus, memory_bytes=wanted.memory_bytes, gpus=wanted.gpus, gpu_type=wanted.gpu_type
    ).describe()


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
