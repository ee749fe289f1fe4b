"""What all processes must agree on before they work together, checked once, so that a difference has a name.

Without it, a wrong shape on one rank is a hang or a broken connection on all others.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from windlass.core.plan import Plan


class RanksDisagree(RuntimeError):
    """Processes of one run came with different models, plans or batches. Raised by all of them."""


def agree_on_model(model: nn.Module, plan: Plan) -> None:
    """RanksDisagree unless all have the same plan and parameters of the same names, shapes and types."""
    mine = [("plan", str(plan))]
    mine += [(name, f"{tuple(p.shape)} {p.dtype}") for name, p in model.named_parameters()]
    _compare(mine, plan.world_size, "model")


def agree_on_batch(inputs: Any, targets: Any, plan: Plan) -> None:
    """RanksDisagree unless all read batches of one shape: a mean of means counts on it, and so do the stages."""
    mine = [
        (what, f"{tuple(value.shape)} {value.dtype}")
        for what, value in (("inputs", inputs), ("targets", targets))
        if isinstance(value, Tensor)
    ]
    _compare(mine, plan.world_size, "batch")


@torch.no_grad()
def share_weights(model: nn.Module, plan: Plan) -> None:
    """Rank 0's parameters and buffers to all: they may have been drawn from different random numbers."""
    if plan.world_size == 1:
        return
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def _compare(mine: list[tuple[str, str]], world_size: int, what: str) -> None:
    if world_size == 1:
        return
    everyone: list[list[tuple[str, str]]] = [[] for _ in range(world_size)]
    dist.all_gather_object(everyone, mine)
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise RanksDisagree(f"rank {rank} has another {what} than rank 0: {_difference(theirs, everyone[0])}")


def _difference(theirs: list[tuple[str, str]], first: list[tuple[str, str]]) -> str:
    ours = dict(first)
    for name, value in theirs:
        if ours.get(name) != value:
            return f"{name} is {value}, and on rank 0 " + (f"it is {ours[name]}" if name in ours else "there is none")
    missing = next(name for name, _ in first if name not in dict(theirs))
    return f"there is no {missing}, which rank 0 has"
