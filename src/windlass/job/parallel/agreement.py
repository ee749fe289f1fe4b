"""What all processes must agree on before they work together, checked once, so that a difference has a name.

Without it, a wrong shape on one rank is a hang or a broken connection on all others.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from windlass.core.plan import Plan

_ROUNDING = 1e-6


class RanksDisagree(RuntimeError):
    """Processes of one run came with different models, plans or batches. Raised by all of them."""


def agree_on_model(model: nn.Module, plan: Plan) -> None:
    """RanksDisagree unless all have the same plan and parameters of the same names, shapes and types."""
    mine = [("plan", str(plan))]
    mine += [(name, f"{tuple(p.shape)} {p.dtype}") for name, p in model.named_parameters()]
    _compare(mine, plan.world_size, "model")


def agree_on_batch(
    inputs: Any, targets: Any, plan: Plan, share: float | None = None, data_rank: int | None = None
) -> None:
    """RanksDisagree unless all read batches of one shape: a mean of means counts on it, and so do the stages. With
    shares, parts may differ in their number of samples, and the shares must add up to the whole batch."""
    said = [(what, value) for what, value in (("inputs", inputs), ("targets", targets)) if isinstance(value, Tensor)]
    mine = [("share", "given" if share is not None else "not given")]
    mine += [(what, f"{tuple(value.shape[share is not None :])} {value.dtype}") for what, value in said]
    _compare(mine, plan.world_size, "batch")
    if share is None or plan.world_size == 1:
        return
    sizes = {what: value.shape[0] for what, value in said}
    everyone: list[Any] = [None] * plan.world_size
    dist.all_gather_object(everyone, (data_rank, share, sizes))
    parts = {reader: (part, rows) for reader, part, rows in everyone}
    whole = sum(part for part, _ in parts.values())
    alike = all((part, rows) == parts[reader] for reader, part, rows in everyone)
    fair = all(
        abs(rows[what] * share - sizes[what] * part) < _ROUNDING * rows[what]
        for part, rows in parts.values()
        for what in rows
    )
    if not (alike and fair and abs(whole - 1.0) < _ROUNDING):
        told = ", ".join(f"{rows} as {part:.4g} of it" for part, rows in parts.values())
        raise RanksDisagree(f"the parts of the batch do not make a whole: {told}; shares are samples / samples of all")


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
