"""What all processes must agree on before they work together, checked once, so that a difference has a name.

Without it, a wrong shape on one rank is a hang or a broken connection on all others.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from windlass.core.plan import Plan
from windlass.job.failures import RanksDisagree
from windlass.job.parallel.batch import tensors_of

_ROUNDING = 1e-6
_BEGINNING = 256  # elements that tell one batch from another


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
    said = [*tensors_of(inputs, "inputs"), *tensors_of(targets, "targets")]
    mine = [("share", "given" if share is not None else "not given")]
    mine += [(what, f"{tuple(value.shape[share is not None :])} {value.dtype}") for what, value in said]
    _compare(mine, plan.world_size, "batch")
    if share is None or plan.world_size == 1:
        return
    sizes = {what: value.shape[0] for what, value in said if value.dim()}
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


def is_read_twice(inputs: Any, targets: Any, plan: Plan, data_rank: int) -> bool:
    """Whether processes that should read different parts of a batch have the same one."""
    if plan.copies == 1:
        return False
    beginnings = [value.flatten()[:_BEGINNING].tolist() for _, value in _strided(inputs, targets)]
    said = repr(beginnings) if any(len(set(numbers)) > 1 for numbers in beginnings) else None  # zeros tell nothing
    everyone: list[Any] = [None] * plan.world_size
    dist.all_gather_object(everyone, (data_rank, said))
    parts = dict(everyone)
    return None not in parts.values() and len(set(parts.values())) < len(parts)


def _strided(inputs: Any, targets: Any) -> list[tuple[str, torch.Tensor]]:
    tensors = [*tensors_of(inputs, "inputs"), *tensors_of(targets, "targets")]
    return [(name, value) for name, value in tensors if value.layout is torch.strided]


class Rows:
    """How many samples each process has in a step: as many as the others, if it has no share of its own.

    All of them learn it once. Later a process knows whether it has another number than before, and says by how many on
    what the mean of the loss is exchanged with. Nobody reads the answer but who has changed, so that no other waits for
    its device; if not all have changed alike, at least one of them finds that its own number is not the mean.
    """

    def __init__(self) -> None:
        self._agreed = 0

    def agree(self, rows: int) -> None:
        self._agreed = rows

    def changed_by(self, rows: int) -> int:
        return rows - self._agreed

    def check(self, rows: int, changes: int, *, rank: int, world_size: int, step: int) -> None:
        """RanksDisagree unless `changes`, the sum of those of all processes, is that of processes that are alike."""
        if changes == world_size * self.changed_by(rows):
            self._agreed = rows
            return
        was = "as before" if rows == self._agreed else f"instead of {self._agreed} as before"
        raise RanksDisagree(
            f"the batches of step {step} differ: rank {rank} has {rows} samples {was}, and all {world_size} ranks "
            f"together have {world_size * self._agreed + changes}; the mean of their losses would be wrong. Leave out "
            "a last batch that is not whole (drop_last=True), or say how large each part is: "
            "step(..., share=samples / samples of all)"
        )


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
