"""Whether a request could ever be met by the nodes there are, and if not, why: for submissions. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from windlass.core.accelerators import is_tpu, serves, title_of
from windlass.core.resources import Node, Resources
from windlass.scheduling.types import NodeKind

_EPSILON = 1e-9


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
            if _could_hold(kind.node, one):
                by_engine[kind.node.engine] = by_engine.get(kind.node.engine, 0) + kind.count
        best = max([best, *by_engine.values()])
    if best >= wanted.nodes:
        return None
    nodes = [kind.node for kind in kinds]
    has_tpus = bool(wanted.gpus) and is_tpu(wanted.gpu_type)
    largest = max(
        nodes,
        key=lambda node: (is_tpu(node.gpu_type) == has_tpus, node.gpus, node.cpus, node.memory_bytes),
        default=None,
    )
    if largest is None:
        return f"engine {' or '.join(sorted(engines))} has no nodes" if engines else "there are no nodes"
    if best:
        return f"asks for {wanted.nodes} nodes of {_one(wanted)}, and only {best} can offer that"
    if apart := _apart(wanted, nodes):
        return apart
    have = f"{largest.cpus:g} CPU, {_gb(largest.memory_bytes)} memory, {largest.gpus} "
    have += title_of(largest.gpu_type) if is_tpu(largest.gpu_type) else "GPU"
    if largest.gpu_type and not is_tpu(largest.gpu_type):
        have += f" ({largest.gpu_type})"
    return f"asks for {_one(wanted)} on a node, and the largest node ({largest.name}) has {have}"


def _could_hold(node: Node, wanted: Resources) -> bool:
    """One node's share, if nothing else were there."""
    return (
        wanted.cpus <= node.cpus + _EPSILON
        and wanted.memory_bytes <= node.memory_bytes
        and wanted.gpus <= node.gpus
        and (not wanted.gpus or serves(node.gpu_type, wanted.gpu_type))
        and wanted.labels <= node.labels
        and (wanted.spot_ok or not node.spot)
    )


def _apart(wanted: Resources, nodes: Sequence[Node]) -> str | None:
    """What no node is, however large."""
    if wanted.gpus and is_tpu(wanted.gpu_type) and not any(is_tpu(node.gpu_type) for node in nodes):
        there = ", ".join(sorted({node.engine for node in nodes}))
        return f"asks for TPUs, and no node that it may go to has any (engines: {there})"
    for label in sorted(wanted.labels):
        if not any(label in node.labels for node in nodes):
            return f"asks for nodes with the label {label}, and none has it"
    if not any(wanted.labels <= node.labels for node in nodes):
        return f"asks for nodes with the labels {', '.join(sorted(wanted.labels))}, and none has all of them"
    if not wanted.spot_ok and all(node.spot for node in nodes if wanted.labels <= node.labels):
        return "asks for nodes that cannot be taken away (`spot: false`), and all are spot"
    return None


def _one(wanted: Resources) -> str:
    return replace(wanted, nodes=1).describe()


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
