"""The policies that a replay can try, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from windlass.core.errors import InvalidInput
from windlass.scheduling.core import index
from windlass.scheduling.core.types import Policy, attained_service, order_of_arrival

DEFAULT = "windlass"

_LEARNED = Policy(rank=index.rank)

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        DEFAULT: _LEARNED,
        "fifo": Policy(rank=order_of_arrival, backfill=False, preempts=False),
        "backfill": Policy(rank=order_of_arrival, preempts=False),
        "least-attained": replace(_LEARNED, rank=attained_service),
        "no-preemption": replace(_LEARNED, preempts=False),
    }
)
# Theirs is the order of arrival over all projects.
IN_ONE_QUEUE = frozenset({"fifo", "backfill"})
CLAIRVOYANT = "clairvoyant"  # no policy of the scheduler: it knows how long jobs last
NAMES = (*POLICIES, CLAIRVOYANT)


def check_policy(name: str) -> None:
    if name not in NAMES:
        raise InvalidInput(f"unknown policy {name!r}; known: {', '.join(NAMES)}")


def find_policy(name: str) -> Policy:
    check_policy(name)
    return POLICIES[name]
