"""What all processes must agree on before they work together, checked once, so that a difference has a name.

Without it, a wrong shape on one rank is a hang or a broken connection on all others.
"""

from __future__ import annotations

import cmath
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from windlass.core.plan import Plan
from windlass.job.failures import RanksDisagree
from windlass.job.parallel.batch import tensors_of

_ROUNDING = 1e-6
_LOOKED_AT = 256  # elements that tell one batch from another
_SAME = 1e-4  # of the largest: elements that differ by less are the same
_LARGEST_SEED = 2**62
_BY_ORDER = "job.order(..., parallel=parallel) knows who reads what"


def agree_on_model(model: nn.Module, plan: Plan) -> None:
    """RanksDisagree unless all have the same plan and parameters of the same names, shapes and types."""
    if plan.world_size == 1:
        return
    mine = [("plan", str(plan))]
    mine += [(name, f"{tuple(p.shape)} {p.dtype}") for name, p in model.named_parameters()]
    everyone: list[Any] = [None] * plan.world_size
    dist.all_gather_object(everyone, mine)
    _check_alike(everyone, "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one process says of its first batch."""

    data_rank: int  # which part of every batch it reads
    share: float | None
    shapes: list[tuple[str, str]]
    rows: dict[str, int]
    looks: dict[str, list[Any]]  # some elements of each tensor that may tell its batch from others


def tell_batch(inputs: Any, targets: Any, plan: Plan, data_rank: int, share: float | None = None) -> list[Told]:
    """What all processes say of their batches, by rank: each judges the same, and all refuse or none."""
    said = [*tensors_of(inputs, "inputs"), *tensors_of(targets, "targets")]
    looks = {what: _look(value) for what, value in said if value.layout is torch.strided}
    mine = Told(
        data_rank=data_rank,
        share=share,
        shapes=[
            ("share", "given" if share is not None else "not given"),
            *((what, f"{tuple(value.shape[share is not None :])} {value.dtype}") for what, value in said),
        ],
        rows={what: value.shape[0] for what, value in said if value.dim()},
        looks={what: seen for what, seen in looks.items() if len(set(seen)) > 1},  # zeros tell nothing
    )
    everyone: list[Any] = [None] * plan.world_size
    dist.all_gather_object(everyone, mine)
    return everyone


def check_batches(everyone: Sequence[Told], plan: Plan) -> None:
    """RanksDisagree unless all read batches of one shape: a mean of means counts on it, and so do the stages. With
    shares, parts may differ in their number of samples, and the shares must add up to the whole batch. Who works on the
    same part must have the same."""
    _check_alike([told.shapes for told in everyone], "batch")
    _check_shares(everyone, plan)
    _check_readers(everyone, plan)


def is_read_twice(everyone: Sequence[Told]) -> bool:
    """Whether processes that should read different parts of a batch have the same one."""
    parts: dict[int, dict[str, list[Any]]] = {}
    for told in everyone:
        parts[told.data_rank] = told.looks | parts.get(told.data_rank, {})
    return all(parts.values()) and len({repr(sorted(part.items())) for part in parts.values()}) < len(parts)


def _check_shares(everyone: Sequence[Told], plan: Plan) -> None:
    given = [(told.data_rank, told.share, told.rows) for told in everyone if told.share is not None]
    if not given:
        return
    _, share, sizes = given[0]
    parts = {reader: (part, rows) for reader, part, rows in given}
    whole = sum(part for part, _ in parts.values())
    alike = all((part, rows) == parts[reader] for reader, part, rows in given)
    fair = all(
        abs(rows[what] * share - sizes[what] * part) < _ROUNDING * rows[what]
        for part, rows in parts.values()
        for what in rows
    )
    if not (alike and fair and abs(whole - 1.0) < _ROUNDING):
        told = ", ".join(f"{rows} as {part:.4g} of it" for part, rows in parts.values())
        same = f", and under {_grouping(plan)} several ranks read the same part: {_BY_ORDER}"
        raise RanksDisagree(
            f"the parts of the batch do not make a whole: {told}; shares are samples / samples of all"
            + (same if plan.copies < plan.world_size else "")
        )


def _check_readers(everyone: Sequence[Told], plan: Plan) -> None:
    first: dict[tuple[int, str], tuple[int, list[Any]]] = {}
    for rank, told in enumerate(everyone):
        for what, seen in told.looks.items():
            other, theirs = first.setdefault((told.data_rank, what), (rank, seen))
            if other != rank and _differs(seen, theirs):
                raise RanksDisagree(
                    f"rank {rank} has other {what} than rank {other}, and under {_grouping(plan)} both work on part "
                    f"{told.data_rank} of {plan.copies} of every batch (parallel.data_rank of parallel.data_world); "
                    f"{_BY_ORDER}, and so does DistributedSampler(data, parallel.data_world, parallel.data_rank)"
                )


def _look(value: Tensor) -> list[Any]:
    """Elements from all over it, at the same places for all processes."""
    elements = value.detach().flatten()
    if len(elements) > _LOOKED_AT:
        elements = elements[random.Random(0).sample(range(len(elements)), _LOOKED_AT)]
    seen: list[Any] = elements.tolist()
    return seen


def _differs(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """By more than arithmetic on other machines makes of the same data. What is no number tells nothing."""
    largest = max((abs(number) for number in (*one, *other) if cmath.isfinite(number)), default=0.0)
    return any(abs(mine - theirs) > _SAME * largest for mine, theirs in zip(one, other, strict=True))


def _grouping(plan: Plan) -> str:
    return ", ".join(f"{name}={size}" for name in ("tensor", "pipeline") if (size := getattr(plan, name)) > 1)


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


def agree_on_seed(plan: Plan) -> int | None:
    """Where several processes work on the same samples, they must draw the same numbers too, as for dropout: without a
    seed of the run, rank 0's. None where each may draw its own."""
    if plan.copies == plan.world_size:
        return None
    drawn = [torch.initial_seed() % _LARGEST_SEED]
    dist.broadcast_object_list(drawn, src=0)
    return drawn[0]


def _check_alike(everyone: Sequence[list[tuple[str, str]]], what: str) -> None:
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
