"""The plans that parity is checked for, each with how far its losses may be from those of one process."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, replace

from windlass.core.plan import Compression, Plan, Precision, Recompute, Schedule

EXACT = 1e-5  # fp32, where only the order of sums differs
# Lossy plans: measured over 20 steps on the small model, then doubled at least.
LOSSY = {
    Precision.BF16: 5e-3,
    Precision.FP16: 1e-3,
    Compression.FP16: 1e-3,
    Compression.BF16: 5e-3,
    Compression.POWERSGD: 3e-1,
    Compression.TOPK: 4e-1,
}
LEARNS = 0.5  # of what one process's loss falls by: what every plan's must, however lossy it is

BATCH = 16  # samples of a step, the same for all, since losses are compared
LARGEST_TENSOR = 4  # the small model's key/value heads
LARGEST_STAGES = 8  # its layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    plan: Plan
    fault: str | None = None  # a mistake made on purpose, for the tests: it must be noticed

    @property
    def bound(self) -> float:
        bounds = [LOSSY.get(kind, EXACT) for kind in (self.plan.precision, self.plan.compress) if kind is not None]
        return max(bounds)

    @property
    def name(self) -> str:
        # One copy goes without saying where there are several processes.
        plan = replace(self.plan, data=None) if self.plan.data == 1 and self.plan.world_size > 1 else self.plan
        return str(plan) + (f" [{self.fault}]" if self.fault else "")


def cases_for(world_size: int, pattern: str = "*") -> list[Case]:
    """Every way to lay out so many processes, and every option of a plan with some layout that it fits."""
    plans = dict.fromkeys(plan.sized(world_size) for plan in _plans(world_size))
    cases = [Case(plan=plan) for plan in plans]
    return [case for case in cases if fnmatch.fnmatchcase(case.name, pattern) or pattern in case.name]


def _plans(world_size: int) -> Iterator[Plan]:
    for number, layout in enumerate(_layouts(world_size)):
        factors = sum(n > 1 for n in (layout.data or 1, layout.shard, layout.tensor, layout.pipeline))
        if factors <= 1:
            yield from _variants(layout)
        else:
            # With eight processes there are many layouts: each takes its turn with and without the extras.
            pair = (_full(layout), _rich(layout))
            yield from pair if world_size <= 4 else pair[number % 2 :][:1]
    yield from _options(world_size)


def _layouts(world_size: int) -> Iterator[Plan]:
    """All products data × shard × tensor × pipeline of that size that the small model can be cut into."""
    sizes = [n for n in range(1, world_size + 1) if world_size % n == 0]
    for pipeline in (n for n in sizes if n <= LARGEST_STAGES):
        for tensor in (n for n in sizes if n <= LARGEST_TENSOR and world_size % (pipeline * n) == 0):
            copies = world_size // (pipeline * tensor)
            for shard in (n for n in sizes if copies % n == 0):
                yield Plan(data=copies // shard, shard=shard, tensor=tensor, pipeline=pipeline)


def _full(layout: Plan) -> Plan:
    return replace(layout, accumulate=max(2, layout.pipeline))


def _rich(layout: Plan) -> Plan:
    """All that its parts can do at once."""
    interleaves = layout.pipeline > 1 and 2 * layout.pipeline <= LARGEST_STAGES
    return replace(
        _full(layout),
        zero=1 if layout.shard > 1 else 3,
        sequence=layout.tensor > 1,
        schedule=Schedule.INTERLEAVED if interleaves else Schedule.GPIPE if layout.pipeline > 1 else layout.schedule,
    )


def _variants(layout: Plan) -> Iterator[Plan]:
    """Of one kind of parallelism: with and without accumulation, and each thing that it can do."""
    full = _full(layout)
    yield layout
    if layout.shard > 1:
        yield from (replace(full, zero=zero) for zero in (1, 2, 3))
    elif layout.tensor > 1:
        yield from (replace(full, sequence=sequence) for sequence in (False, True))
    elif layout.pipeline > 1:
        yield from (replace(full, schedule=schedule) for schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B))
        if 2 * layout.pipeline <= LARGEST_STAGES:
            yield replace(full, schedule=Schedule.INTERLEAVED)
    else:
        yield full


def _options(world_size: int) -> Iterator[Plan]:
    """Everything else that a plan can ask for: all of it with one and two processes, some beside every layout."""
    if world_size <= 2:
        for plan in _simple(world_size):
            yield replace(plan, clip=0.5)
            yield replace(plan, activation_checkpoint=Recompute.FULL)
            yield replace(plan, activation_checkpoint=Recompute.SELECTIVE)
            yield replace(plan, precision=Precision.BF16)
            yield replace(plan, precision=Precision.FP16)
    if world_size > 1:
        yield from (Plan(data=world_size, compress=kind) for kind in Compression)
        yield Plan(data=world_size, compress=Compression.TOPK, accumulate=2)
        yield Plan(shard=world_size, offload=True, clip=0.5, accumulate=2)
    if world_size >= 4:
        full, selective = Recompute.FULL, Recompute.SELECTIVE
        yield Plan(shard=2, clip=0.5, activation_checkpoint=full, precision=Precision.BF16)
        yield Plan(shard=2, tensor=2, sequence=True, clip=0.5, activation_checkpoint=selective)
        yield Plan(pipeline=2, tensor=2, accumulate=4, clip=0.5, activation_checkpoint=full)
        yield Plan(pipeline=2, shard=2, accumulate=4, precision=Precision.BF16, activation_checkpoint=selective)


def _simple(world_size: int) -> Iterator[Plan]:
    yield Plan(data=world_size)
    if world_size > 1:
        yield Plan(shard=world_size)
        yield Plan(tensor=world_size)
        yield Plan(pipeline=world_size, accumulate=world_size)
