"""From Ray's tables to the nodes that the scheduler may use. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.core.accelerators import tpu
from windlass.core.resources import Node
from windlass.engines.attributes import is_named, is_spot, labels_of, price_of, topology_of
from windlass.engines.ray.tables import RayNode, Tables, node_names

_ACCELERATOR = "accelerator_type:"
_ACCELERATOR_LABEL = "ray.io/accelerator-type"
_TOPOLOGY = ("ray.io/availability-zone",)
_HOLDING = ("PREPARED", "CREATED", "RESCHEDULING")


def render_inventory(
    engine: str, tables: Tables, *, prices: Mapping[str, float] | None = None, spot_nodes: Sequence[str] = ()
) -> tuple[Node, ...]:
    """What others use of a node is not there for us: a node offers what is free and what is ours already. Nodes that
    are being drained offer nothing. `prices` and `spot_nodes` name labels as `key=value`, custom resources, or patterns
    of nodes' names."""
    names = node_names(tables)
    ours = _held_by_us(tables)
    nodes = []
    for node in tables.nodes:
        has_tpus = "TPU" in node.total and "GPU" not in node.total
        kinds = ("CPU", "TPU" if has_tpus else "GPU", "memory")
        cpus, gpus, memory = (_offered(node, ours, kind) for kind in kinds)
        if not node.alive or node.draining or cpus <= 0:
            continue
        marks = {*(f"{key}={value}" for key, value in node.labels.items()), *node.total}
        nodes.append(
            Node(
                engine=engine,
                name=names[node.id],
                cpus=round(cpus, 4),
                memory_bytes=int(memory),
                gpus=int(gpus),
                gpu_type=(tpu(_named_type(node)) if has_tpus else _gpu_type(node)) if gpus >= 1 else None,
                labels=labels_of(node.labels),
                topology=topology_of(node.labels, _TOPOLOGY),
                price_per_hour=price_of(prices or {}, names[node.id], marks),
                spot=is_spot(node.labels) or is_named(spot_nodes, names[node.id], marks),
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.name))


def _held_by_us(tables: Tables) -> Mapping[tuple[str, str], float]:
    """(node id, kind) -> amount."""
    held: dict[tuple[str, str], float] = {}
    for group in tables.groups.values():
        if group.state in _HOLDING:
            for node_id, amounts in group.bundles:
                for kind, amount in amounts.items():
                    held[node_id, kind] = held.get((node_id, kind), 0.0) + amount
    return held


def _offered(node: RayNode, ours: Mapping[tuple[str, str], float], kind: str) -> float:
    """Never more than there is: the two tables are not of one instant."""
    free = node.available.get(kind, 0.0) + ours.get((node.id, kind), 0.0)
    return min(node.total.get(kind, 0.0), free)


def _gpu_type(node: RayNode) -> str | None:
    found = _named_type(node)
    return found.lower() if found else None


def _named_type(node: RayNode) -> str | None:
    """`H100`, `TPU-V5E`."""
    named = next((name.removeprefix(_ACCELERATOR) for name in node.total if name.startswith(_ACCELERATOR)), None)
    return named or node.labels.get(_ACCELERATOR_LABEL)
