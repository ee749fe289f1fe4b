"""Who starts now, and where: `decide_placements(snapshot)`. Pure and deterministic.

The order is priority, then time of queueing. A gang gets all its nodes or none, an elastic one as many as are free
within its range; a run that does not fit yet keeps those
behind it waiting on the engines that it may go to, so nothing is overtaken for ever. A run that was running before goes
back to its nodes where it can. Nodes that are set aside are left out, unless a run could not run anywhere else: then a
node that failed is better than none, but not one that somebody has set aside by hand.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from windlass.core.resources import Node, NodeShare, Placement, Resources
from windlass.scheduling.types import ClusterSnapshot, NodeKind, PlacementDecision, WaitingRun

_EPSILON = 1e-9


class Room(NamedTuple):
    """What is left of a node, the scarcest first. Nodes with the same room are as good as each other."""

    gpus: int
    cpus: float
    memory_bytes: int
    gpu_type: str
    is_aside: bool = False


@dataclass(slots=True, kw_only=True)
class FreeNode:
    """A node with what is left of it, while one pass hands it out."""

    node: Node
    cpus: float
    memory_bytes: int
    gpu_indices: list[int] = field(default_factory=list)
    is_aside: bool = False

    @property
    def room(self) -> Room:
        return Room(len(self.gpu_indices), self.cpus, self.memory_bytes, self.node.gpu_type or "", self.is_aside)

    def fits(self, wanted: Resources, engines: frozenset[str] | None = None) -> bool:
        """Whether there is room for one node's share; says the same as `shortage`, sooner."""
        return (
            (engines is None or self.node.engine in engines)
            and wanted.cpus <= self.cpus + _EPSILON
            and wanted.memory_bytes <= self.memory_bytes
            and wanted.gpus <= len(self.gpu_indices)
            and not (wanted.gpu_type and wanted.gpus and wanted.gpu_type != self.node.gpu_type)
            and wanted.labels <= self.node.labels
            and (wanted.spot_ok or not self.node.spot)
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
            missing.append(f"{wanted.gpus:g} GPU ({len(self.gpu_indices)} of {self.node.gpus} free)")
        return missing

    def take(self, wanted: Resources) -> NodeShare:
        share = NodeShare(
            node=self.node.name,
            cpus=wanted.cpus,
            memory_bytes=wanted.memory_bytes,
            gpu_indices=tuple(self.gpu_indices[: math.ceil(wanted.gpus)]),
        )
        self.hold(share)
        return share

    def hold(self, share: NodeShare) -> None:
        self.cpus -= share.cpus
        self.memory_bytes -= share.memory_bytes
        left = [index for index in self.gpu_indices if index not in share.gpu_indices]
        # Beside the load of others a node offers fewer GPUs than it has, and the share may hold one beyond them. It is
        # their number that counts then.
        beyond = len(share.gpu_indices) - (len(self.gpu_indices) - len(left))
        self.gpu_indices = left[: max(0, len(left) - beyond)]


class NodePool:
    """The nodes of one engine while one pass hands them out, kept by what is left of them: nodes are many, kinds of
    room few, so that a run finds its place without looking at every node."""

    def __init__(self, nodes: Iterable[FreeNode]) -> None:
        self._by_room: dict[Room, list[FreeNode]] = {}  # each in order of names
        self._by_name: dict[str, FreeNode] = {}
        for node in sorted(nodes, key=_name):
            self._by_room.setdefault(node.room, []).append(node)
            self._by_name[node.node.name] = node
        self._rooms = sorted(self._by_room)

    def __len__(self) -> int:
        return len(self._by_name)

    def take(
        self, wanted: Resources, *, before: Sequence[str] = (), aside_too: bool = False
    ) -> tuple[NodeShare, ...] | None:
        """The shares of a gang on as many nodes, or None and nothing is changed. Nodes of `before` keep their place in
        it, others fill up; nodes that are set aside come last, if at all."""
        chosen = self._choose(wanted, before, aside_too=False)
        if chosen is None and aside_too:
            chosen = self._choose(wanted, before, aside_too=True)
        if chosen is None:
            return None
        for node in chosen:
            self._remove(node)
        shares = tuple(node.take(wanted) for node in chosen)
        for node in chosen:
            self._add(node)
        return shares

    def _choose(self, wanted: Resources, before: Sequence[str], *, aside_too: bool) -> list[FreeNode] | None:
        """Best fit: the fullest nodes first, so that large holes stay whole; by name among equals."""
        places: list[FreeNode | None] = [None] * wanted.nodes
        for place, name in enumerate(before[: wanted.nodes]):
            node = self._by_name.get(name)
            if node is not None and node.fits(wanted) and (aside_too or not node.is_aside):
                places[place] = node
        kept = {node.node.name for node in places if node is not None}
        others: list[FreeNode] = []
        left = wanted.nodes - len(kept)
        for _, rooms in groupby(self._rooms, key=lambda room: room[:3]):
            if len(others) == left:
                break
            usable = [room for room in rooms if aside_too or not room.is_aside]
            equals = [node for room in usable for node in self._fitting(room, wanted) if node.node.name not in kept]
            others += sorted(equals, key=_name)[: left - len(others)]
        if len(others) < left:
            return None
        filling = iter(others)
        return [node if node is not None else next(filling) for node in places]

    def _fitting(self, room: Room, wanted: Resources) -> list[FreeNode]:
        """As many as a gang could want, were all of those that it keeps among them."""
        alike = self._by_room[room]
        return alike[: 2 * wanted.nodes] if alike[0].fits(wanted) else []

    def _remove(self, node: FreeNode) -> None:
        room = node.room
        alike = self._by_room[room]
        alike.remove(node)
        if not alike:
            del self._by_room[room]
            self._rooms.remove(room)

    def _add(self, node: FreeNode) -> None:
        room = node.room
        if room not in self._by_room:
            self._by_room[room] = []
            insort(self._rooms, room)
        insort(self._by_room[room], node, key=_name)


def decide_placements(snapshot: ClusterSnapshot, *, most: int | None = None) -> list[PlacementDecision]:
    """The first `most` of them; None: all."""
    pools = _pools(snapshot)
    soundness = Soundness.of(snapshot)
    decisions: list[PlacementDecision] = []
    for run in in_order(snapshot.waiting):
        if len(decisions) == most:
            break
        placement = _place_gang(run, pools, aside_too=soundness.needs_aside(run))
        if placement is not None:
            decisions.append(PlacementDecision(run_id=run.run_id, placement=placement))
        elif soundness.is_out_of_reach(run):
            continue  # waits for somebody to give a node back: no reason for others to wait too
        elif run.engines is None:
            break
        else:
            pools = {engine: pool for engine, pool in pools.items() if engine not in run.engines}
    return decisions


def in_order(waiting: tuple[WaitingRun, ...]) -> list[WaitingRun]:
    return sorted(waiting, key=lambda run: (-run.priority, run.queued_at, run.run_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Soundness:
    """What the cluster could hold without the nodes that are set aside."""

    sound: tuple[NodeKind, ...] | None = None  # None: no node is set aside
    usable: tuple[NodeKind, ...] = ()  # with those that failed, without those set aside by hand

    @classmethod
    def of(cls, snapshot: ClusterSnapshot) -> Soundness:
        if not snapshot.aside:
            return cls()
        found = [(node, snapshot.aside.get((node.engine, node.name))) for node in snapshot.nodes]
        return cls(
            sound=kinds_of(node for node, aside in found if aside is None),
            usable=kinds_of(node for node, aside in found if aside is None or not aside.by_hand),
        )

    def needs_aside(self, run: WaitingRun) -> bool:
        """Whether it could not run even if all other nodes were idle."""
        return self.sound is not None and why_never(run.resources, self.sound, run.engines) is not None

    def is_out_of_reach(self, run: WaitingRun) -> bool:
        return self.sound is not None and why_never(run.resources, self.usable, run.engines) is not None


def free_nodes(snapshot: ClusterSnapshot) -> list[FreeNode]:
    free = {(node.engine, node.name): _idle(node) for node in snapshot.nodes}
    for key in snapshot.aside.keys() & free.keys():
        free[key].is_aside = True
    for placement in snapshot.held.values():
        for share in placement.shares:
            if node := free.get((placement.engine, share.node)):
                node.hold(share)
    return list(free.values())


def kinds_of(nodes: Iterable[Node]) -> tuple[NodeKind, ...]:
    """In the order of their first nodes."""
    counts: dict[Hashable, int] = {}
    first: list[Node] = []
    for node in nodes:
        kind = (node.engine, node.cpus, node.memory_bytes, node.gpus, node.gpu_type, node.labels, node.spot)
        if kind not in counts:
            first.append(node)
            counts[kind] = 0
        counts[kind] += 1
    return tuple(NodeKind(node=node, count=count) for node, count in zip(first, counts.values(), strict=True))


def why_never(wanted: Resources, kinds: Sequence[NodeKind], engines: frozenset[str] | None = None) -> str | None:
    """Why this request could not be met even by an idle cluster, whichever of its alternatives; None if it could."""
    kinds = [kind for kind in kinds if engines is None or kind.node.engine in engines]
    best = 0
    for gpu_type in wanted.types:
        one = replace(wanted, gpus=wanted.amounts[-1], gpu_type=gpu_type)
        by_engine: dict[str, int] = {}
        for kind in kinds:
            if _idle(kind.node).fits(one):
                by_engine[kind.node.engine] = by_engine.get(kind.node.engine, 0) + kind.count
        best = max([best, *by_engine.values()])
    if best >= wanted.nodes:
        return None
    nodes = [kind.node for kind in kinds]
    largest = max(nodes, key=lambda node: (node.gpus, node.cpus, node.memory_bytes), default=None)
    if largest is None:
        return f"engine {' or '.join(sorted(engines))} has no nodes" if engines else "there are no nodes"
    if best:
        return f"asks for {wanted.nodes} nodes of {_one(wanted)}, and only {best} can offer that"
    if apart := _apart(wanted, nodes):
        return apart
    have = f"{largest.cpus:g} CPU, {_gb(largest.memory_bytes)} memory, {largest.gpus} GPU"
    if largest.gpu_type:
        have += f" ({largest.gpu_type})"
    return f"asks for {_one(wanted)} on a node, and the largest node ({largest.name}) has {have}"


def _apart(wanted: Resources, nodes: Sequence[Node]) -> str | None:
    """What no node is, however large."""
    for label in sorted(wanted.labels):
        if not any(label in node.labels for node in nodes):
            return f"asks for nodes with the label {label}, and none has it"
    if not any(wanted.labels <= node.labels for node in nodes):
        return f"asks for nodes with the labels {', '.join(sorted(wanted.labels))}, and none has all of them"
    if not wanted.spot_ok and all(node.spot for node in nodes if wanted.labels <= node.labels):
        return "asks for nodes that cannot be taken away (`spot: false`), and all are spot"
    return None


def _place_gang(run: WaitingRun, pools: Mapping[str, NodePool], *, aside_too: bool) -> Placement | None:
    fewest = run.resources.nodes
    most = min(run.most_nodes or fewest, max(map(len, pools.values()), default=0))
    for nodes in range(most, fewest, -1):
        if (placement := _place(run, replace(run.resources, nodes=nodes), pools, aside_too=False)) is not None:
            return placement
    return _place(run, run.resources, pools, aside_too=aside_too)


def _place(run: WaitingRun, wanted: Resources, pools: Mapping[str, NodePool], *, aside_too: bool) -> Placement | None:
    """Where it was before comes first."""
    for engine, pool in sorted(pools.items(), key=lambda item: run.before is None or item[0] != run.before.engine):
        if run.engines is None or engine in run.engines:
            was_here = run.before is not None and run.before.engine == engine
            before = [share.node for share in run.before.shares] if run.before is not None and was_here else []
            shares = pool.take(wanted, before=before, aside_too=aside_too)
            if shares is not None:
                return Placement(engine=engine, shares=shares)
    return None


def _pools(snapshot: ClusterSnapshot) -> dict[str, NodePool]:
    """By engine, in the order in which the snapshot names them."""
    by_engine: dict[str, list[FreeNode]] = {}
    for node in free_nodes(snapshot):
        aside = snapshot.aside.get((node.node.engine, node.node.name))
        if aside is None or not aside.by_hand:
            by_engine.setdefault(node.node.engine, []).append(node)
    return {engine: NodePool(nodes) for engine, nodes in by_engine.items()}


def _idle(node: Node) -> FreeNode:
    return FreeNode(node=node, cpus=node.cpus, memory_bytes=node.memory_bytes, gpu_indices=list(range(node.gpus)))


def _name(node: FreeNode) -> str:
    return node.node.name


def _one(wanted: Resources) -> str:
    return replace(wanted, nodes=1).describe()


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
