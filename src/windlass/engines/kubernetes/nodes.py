"""What a cluster's nodes offer and how they are: `parse_node`, `parse_foreign_pod` and `decide_inventory`, all pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from windlass.core.accelerators import tpu
from windlass.core.resources import Node
from windlass.engines.attributes import is_spot, labels_of, topology_of
from windlass.engines.kubernetes.api import Json
from windlass.engines.kubernetes.pods import parse_time

_SCALES = {
    "": 0,
    "n": -9,
    "u": -6,
    "m": -3,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
# Taints by which clusters announce that a node will go, and how long pods have from then, where that is known.
_LEAVING: Mapping[str, float | None] = {
    "ToBeDeletedByClusterAutoscaler": None,
    "cloud.google.com/impending-node-termination": 25.0,
    "aws-node-termination-handler/spot-itn": 110.0,
    "aws-node-termination-handler/scheduled-maintenance": None,
    "karpenter.sh/disrupted": None,
    "karpenter.sh/disruption": None,
    "node.kubernetes.io/out-of-service": 0.0,
}
_KEEPING_OUT = ("NoSchedule", "NoExecute")
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
# The hosts of a slice of TPUs, which are wired to each other, are a pool of their own.
SLICE_LABEL = "cloud.google.com/gke-nodepool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    why: str
    since: float | None
    within_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    name: str
    ready: bool | None  # None: it has not been heard of lately
    ready_since: float | None
    cordoned: bool
    leaving: Leaving | None
    taints: tuple[tuple[str, str], ...]  # key and value of those that keep pods out
    labels: Mapping[str, str]
    allocatable: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPod:
    """What a pod that is not ours holds of its node."""

    node: str
    requests: Mapping[str, Decimal]


def parse_quantity(text: str | int | float) -> Decimal:
    """`250m`, `16Gi`, `1e3`: Kubernetes's way to write amounts."""
    plain = str(text).strip()
    if plain[-2:] in _BINARY:
        return Decimal(plain[:-2]) * Decimal(1024) ** _BINARY[plain[-2:]]
    if plain[-1:] in _SCALES and plain[-1:].isalpha():
        return Decimal(plain[:-1]).scaleb(_SCALES[plain[-1]])
    return Decimal(plain)


def parse_node(seen: Json) -> NodeState:
    metadata, spec, status = seen["metadata"], seen.get("spec") or {}, seen.get("status") or {}
    ready = next((c for c in status.get("conditions") or [] if c["type"] == "Ready"), None)
    taints = spec.get("taints") or []
    return NodeState(
        name=metadata["name"],
        ready={"True": True, "False": False}.get(ready["status"]) if ready else False,
        ready_since=parse_time(ready.get("lastTransitionTime")) if ready else None,
        cordoned=bool(spec.get("unschedulable")),
        leaving=next(filter(None, map(_leaving, taints)), None),
        taints=tuple((t["key"], t.get("value", "")) for t in taints if t["effect"] in _KEEPING_OUT),
        labels=metadata.get("labels") or {},
        allocatable=status.get("allocatable") or {},
    )


def parse_foreign_pod(seen: Json) -> ForeignPod | None:
    """None for a pod that holds nothing: ended, or not on a node yet."""
    spec = seen.get("spec") or {}
    if not spec.get("nodeName") or (seen.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return None
    return ForeignPod(node=spec["nodeName"], requests=pod_requests(spec))


def pod_requests(spec: Mapping[str, Any]) -> dict[str, Decimal]:
    """As the scheduler counts: all containers together, or the largest initial one, and the overhead on top."""
    together: dict[str, Decimal] = {}
    for container in spec.get("containers") or []:
        for name, amount in _requests(container).items():
            together[name] = together.get(name, Decimal(0)) + amount
    for container in spec.get("initContainers") or []:
        for name, amount in _requests(container).items():
            together[name] = max(together.get(name, Decimal(0)), amount)
    for name, amount in (spec.get("overhead") or {}).items():
        together[name] = together.get(name, Decimal(0)) + parse_quantity(amount)
    return together


def decide_inventory(
    nodes: Iterable[NodeState],
    foreign: Iterable[ForeignPod],
    *,
    engine: str,
    selector: Mapping[str, str],
    tolerated: Iterable[str],
    gpu_resource: str,
    gpu_type_label: str,
    tpu_resource: str = "google.com/tpu",
    tpu_type_label: str = "cloud.google.com/gke-tpu-accelerator",
    topology_labels: Sequence[str] = (),
    prices: Mapping[str, float] | None = None,
) -> list[Node]:
    """What attempts can have: of nodes that take pods, what others have not asked for. `tolerated` are keys of taints
    that the engine's pods do not mind, beside that of TPUs; `prices` are of a whole node, by its type of instance."""
    held: dict[str, dict[str, Decimal]] = {}
    for pod in foreign:
        on_node = held.setdefault(pod.node, {})
        for name, amount in pod.requests.items():
            on_node[name] = on_node.get(name, Decimal(0)) + amount
    minded = {*tolerated, tpu_resource}
    offered = []
    for node in sorted(nodes, key=lambda node: node.name):
        if not takes_pods(node, minded) or any(node.labels.get(key) != value for key, value in selector.items()):
            continue
        free = {
            name: max(Decimal(0), parse_quantity(amount) - held.get(node.name, {}).get(name, Decimal(0)))
            for name, amount in node.allocatable.items()
        }
        has_tpus = gpu_resource not in node.allocatable and tpu_resource in node.allocatable
        gpus = int(free.get(tpu_resource if has_tpus else gpu_resource, 0))
        gpu_type = tpu(node.labels.get(tpu_type_label)) if has_tpus else node.labels.get(gpu_type_label)
        places = (*topology_labels, SLICE_LABEL) if has_tpus else topology_labels
        offered.append(
            Node(
                engine=engine,
                name=node.name,
                cpus=float(free.get("cpu", 0)),
                memory_bytes=int(free.get("memory", 0)),
                gpus=gpus,
                gpu_type=gpu_type if gpus else None,
                labels=labels_of(node.labels),
                topology=topology_of(node.labels, places),
                price_per_hour=(prices or {}).get(node.labels.get(_INSTANCE_TYPE, ""), 0.0),
                spot=is_spot(node.labels),
            )
        )
    return offered


def takes_pods(node: NodeState, tolerated: set[str]) -> bool:
    if node.ready is not True or node.cordoned or node.leaving is not None:
        return False
    return all(key in tolerated for key, _ in node.taints)


def _requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    asked = (container.get("resources") or {}).get("requests") or {}
    return {name: parse_quantity(amount) for name, amount in asked.items()}


def _leaving(taint: Mapping[str, Any]) -> Leaving | None:
    key = taint["key"]
    if key not in _LEAVING:
        return None
    return Leaving(why=key, since=parse_time(taint.get("timeAdded")), within_s=_LEAVING[key])
