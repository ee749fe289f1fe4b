"""The ranks of a run as checkpoints need them: to agree on small things, over the hosts' own network.

A group of its own: what is exchanged here must not get between the collectives of the training.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist

Value = TypeVar("Value")


class Peers:
    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if together else 0
        self.world_size = dist.get_world_size() if together else 1
        self._group: Any = dist.new_group(backend="gloo") if together else None

    def gather(self, mine: Value) -> list[Value]:
        """What every rank came with, on every rank."""
        if self._group is None:
            return [mine]
        everyone: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyone, mine, group=self._group)
        return everyone

    def from_first(self, mine: Value) -> Value:
        if self._group is None:
            return mine
        box = [mine]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def send(self, content: torch.Tensor, rank: int) -> None:
        """Bytes of that rank to all others, into theirs of the same size."""
        if self._group is not None:
            dist.broadcast(content, src=rank, group=self._group)

    def largest(self, values: list[int]) -> list[int]:
        """Each number's largest over all ranks."""
        return Exchange(values, self._group).result()

    def begin_largest(self, values: list[int]) -> Exchange:
        return Exchange(values, self._group)


class Exchange:
    """`largest`, begun now and looked at later, so that nobody waits for the slowest in between."""

    def __init__(self, values: list[int], group: Any) -> None:
        self._values = torch.tensor(values, dtype=torch.int64)
        self._work: Any = None
        if group is not None:
            self._work = dist.all_reduce(self._values, op=dist.ReduceOp.MAX, group=group, async_op=True)

    def result(self) -> list[int]:
        if self._work is not None:
            self._work.wait()
            self._work = None
        return [int(value) for value in self._values]
