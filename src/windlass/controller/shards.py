"""Which controller looks after which runs. Pure.

A run's slot never changes; shards divide the slots, so the number of shards can be changed when no controller runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from windlass.core.ids import SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardChange:
    take: frozenset[int] = frozenset()
    release: frozenset[int] = frozenset()


def slots_of(shards: Collection[int], count: int) -> frozenset[int]:
    return frozenset(slot for slot in range(SLOTS) if slot % count in shards)


def decide_shards(
    count: int, *, mine: Collection[int], free: Collection[int], me: str, members: Sequence[str]
) -> ShardChange:
    """`members`: the controllers that live, in an order all of them agree on. Each gets an equal part; the earlier
    ones one more where it does not come out even. Shards of the dead are taken, surplus ones are given back."""
    place = members.index(me)
    part = count // len(members) + (place < count % len(members))
    if len(mine) > part:
        return ShardChange(release=frozenset(sorted(mine)[part:]))
    return ShardChange(take=frozenset(sorted(free)[: part - len(mine)]))
