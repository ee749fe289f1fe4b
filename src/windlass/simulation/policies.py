"""The policies that a replay can try, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from windlass.core.errors import InvalidInput
from windlass.scheduling.core import index
from windlass.scheduling.core.types import Policy, attained_service, order_of_arrival

DEFAULT = "windlass"

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        DEFAULT: Policy(rank=index.rank),
        "fifo": Policy(rank=order_of_arrival, backfill=False, preempts=False),
        "backfill": Policy(rank=order_of_arrival, preempts=False),
        "least-attained": Policy(rank=attained_service),
        "no-preemption": Policy(rank=index.rank, preempts=False),
    }
)
CLAIRVOYANT = "clairvoyant"  # no policy of the scheduler: it knows how long jobs last
NAMES = (*POLICIES, CLAIRVOYANT)


def check_policy(name: str) -> None:
    if name not in NAMES:
        raise InvalidInput(f"unknown policy {name!r}; known: {', '.join(NAMES)}")


def find_policy(name: str) -> Policy:
    check_policy(name)
    return POLICIES[name]
