"""What nodes have in common: which wants they suit, and where they are near each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windlass.core.accelerators import serves
from windlass.scheduling.core.shapes import Form
from windlass.scheduling.core.types import Health, NodeState


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes that suit the same wants. Cheap ones first, and those without GPUs before those with."""

    health: Health
    price_per_hour: float
    gpus: int
    engine: str
    gpu_type: str
    spot: bool
    labels: frozenset[str]

    def suits(self, form: Form) -> bool:
        want = form.want
        return (
            form.gpus <= self.gpus
            and (want.engines is None or self.engine in want.engines)
            and (not want.gpus or serves(self.gpu_type, want.gpu_type))
            and (want.spot_ok or not self.spot)
            and want.labels <= self.labels
        )


def kinds_of(nodes: Sequence[NodeState]) -> tuple[list[Kind], list[int]]:
    """All kinds, and which of them each node is of."""
    known: dict[tuple[object, ...], Kind] = {}
    keys = []
    for node in nodes:
        key = (node.engine, node.gpus, node.gpu_type, node.spot, node.price_per_hour, node.labels, node.health)
        if key not in known:
            known[key] = Kind(
                health=node.health,
                price_per_hour=node.price_per_hour,
                gpus=node.gpus,
                engine=node.engine,
                gpu_type=node.gpu_type or "",
                spot=node.spot,
                labels=node.labels,
            )
        keys.append(key)
    ordered = sorted(known, key=lambda key: _kind_order(known[key]))
    number = {key: at for at, key in enumerate(ordered)}
    return [known[key] for key in ordered], [number[key] for key in keys]


def _kind_order(kind: Kind) -> tuple[object, ...]:
    return (
        kind.health is not Health.SOUND,
        kind.gpus > 0,
        kind.price_per_hour,
        kind.gpus,
        kind.engine,
        kind.gpu_type,
        not kind.spot,
        sorted(kind.labels),
    )


def levels_of(nodes: Sequence[NodeState]) -> list[list[tuple[int, int]]]:
    """For each level of the topology, the nearest first, the ranges of places that share it. A gang is within one
    engine already, so that the whole needs no level."""
    depth = max((len(node.topology) for node in nodes), default=0)
    levels = []
    for level in range(depth, 0, -1):
        ranges: list[tuple[int, int]] = []
        start = 0
        for place in range(1, len(nodes) + 1):
            if place == len(nodes) or _part(nodes[place], level) != _part(nodes[start], level):
                ranges.append((start, place))
                start = place
        levels.append(ranges)
    return levels


def _part(node: NodeState, level: int) -> tuple[str, tuple[str, ...]]:
    return node.engine, node.topology[:level]
