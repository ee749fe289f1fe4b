"""From Slurm's nodes to what the scheduler may place on: `decide_inventory`, pure.

The scheduler counts what our own attempts hold; what other people's jobs hold is no part of the offer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from windlass.core.resources import Node
from windlass.engines.attributes import is_named, is_spot, labels_of, price_of, topology_of
from windlass.engines.slurm.tables import NodeRow

_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one of our attempts has of one node."""

    node: str
    cpus: float
    memory_bytes: int
    gpus: int


def decide_inventory(
    engine: str,
    rows: Sequence[NodeRow],
    holdings: Sequence[Holding],
    *,
    may_use_reserved: bool,
    topology_features: Sequence[str] = (),
    switches: Mapping[str, tuple[str, ...]] | None = None,
    prices: Mapping[str, float] | None = None,
    spot_nodes: Sequence[str] = (),
) -> list[Node]:
    """`switches` of a node, the widest first, are where it stands unless features say it. `prices` and `spot_nodes`
    name features, or patterns of nodes' names."""
    found = []
    for row in rows:
        if not row.is_fit or ("reserved" in row.states and not may_use_reserved):
            continue
        ours = [holding for holding in holdings if holding.node == row.name]
        foreign_cpus = max(0.0, row.cpus_used - sum(holding.cpus for holding in ours))
        foreign_bytes = max(0, row.memory_used_mb * _MEGABYTE - sum(holding.memory_bytes for holding in ours))
        foreign_gpus = max(0, row.gpus_used - sum(holding.gpus for holding in ours))
        cpus = row.cpus - foreign_cpus
        if cpus <= 0:
            continue
        gpus = max(0, row.gpus - foreign_gpus)
        labels = features_as_labels(row.features)
        found.append(
            Node(
                engine=engine,
                name=row.name,
                cpus=cpus,
                memory_bytes=max(0, row.memory_mb * _MEGABYTE - foreign_bytes),
                gpus=gpus,
                gpu_type=row.gpu_type.lower() if row.gpu_type and gpus else None,
                labels=labels_of(labels),
                topology=topology_of(labels, topology_features) or (switches or {}).get(row.name, ()),
                price_per_hour=price_of(prices or {}, row.name, row.features),
                spot=is_spot(labels) or is_named(spot_nodes, row.name, row.features),
            )
        )
    return found


def features_as_labels(features: Sequence[str]) -> dict[str, str]:
    """`rack=r1` is a label as it is, `nvlink` is `nvlink=true`."""
    parts = [feature.partition("=") for feature in features]
    return {key: value if equals else "true" for key, equals, value in parts}
