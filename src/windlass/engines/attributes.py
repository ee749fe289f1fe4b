"""What a node's labels, features and name say about it: where it stands, what it costs and whether it can be taken
away. Pure.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence

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


def is_named(words: Iterable[str], name: str, marks: Collection[str]) -> bool:
    """Whether one of the words is a mark of the node, such as a feature, or a pattern of its name."""
    return any(word in marks or fnmatch.fnmatchcase(name, word) for word in words)


def price_of(prices: Mapping[str, float], name: str, marks: Collection[str]) -> float:
    """Dollars an hour by the first entry that names the node; 0 if none does."""
    return next((price for word, price in prices.items() if is_named((word,), name, marks)), 0.0)
