"""What the labels of a node say about it: where it stands and whether it can be taken away. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Each node has a value of its own: as a label it would only make every node a kind of its own.
_OWN = ("kubernetes.io/hostname", "alpha.eksctl.io/instance-id", "ray.io/node-id")
_SPOT: Mapping[str, str] = {
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "eks.amazonaws.com/capacitytype": "spot",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "ray.io/market-type": "spot",
    "spot": "true",
}


def labels_of(labels: Mapping[str, str]) -> frozenset[str]:
    """As `key=value`, without those that are a node's own."""
    return frozenset(f"{key}={value}" for key, value in labels.items() if key not in _OWN)


def topology_of(labels: Mapping[str, str], keys: Sequence[str]) -> tuple[str, ...]:
    """The values of `keys`, from the widest to the nearest, up to the first that it lacks: a rack in an unknown zone
    could be any."""
    found = []
    for key in keys:
        if not labels.get(key):
            break
        found.append(labels[key])
    return tuple(found)


def is_spot(labels: Mapping[str, str]) -> bool:
    """By the labels that clouds and autoscalers give to nodes that they may take back."""
    return any(_SPOT.get(key.lower()) == value.lower() for key, value in labels.items())
