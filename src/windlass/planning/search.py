"""Every plan that a world size, a model and a batch allow, with the memory and time of each: `find_candidates`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from windlass.core.plan import InvalidPlan, Plan, Precision, Recompute, Schedule
from windlass.planning.facts import ClusterFacts, ModelFacts, Transformer
from windlass.planning.memory import Memory, budget, memory_of
from windlass.planning.timing import Timing, time_of

_DEFAULT = Plan()
_STAGES = (2, 3, 4)  # per process, when interleaved; more only adds messages
_MOST_MICROBATCH = 64
# Speeds that differ by less are the same for us, and the simpler plan comes first.
_SAME = 0.01
_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A sized plan with what it needs and how fast it is."""

    plan: Plan
    microbatch: int  # samples
    memory: Memory
    timing: Timing
    tokens_per_s: float  # of all GPUs together
    mfu: float

    def days(self, tokens: float) -> float:
        return tokens / self.tokens_per_s / _DAY_S

    def dollars(self, tokens: float, per_gpu_hour: float) -> float:
        return self.days(tokens) * 24 * self.plan.world_size * per_gpu_hour


def find_candidates(model: ModelFacts, cluster: ClusterFacts, *, batch: int | None, base: Plan) -> list[Candidate]:
    """Those that fit the memory, the best first, one for each way to divide the processes.

    `batch`: samples of a step; None: one microbatch of one sample for each process that reads data. What differs from
    the defaults in `base` is kept as it is. Empty if nothing fits, or the model's shape is not known.
    """
    transformer = model.transformer()
    if transformer is None:
        return []
    room = budget(cluster.gpu)
    best: dict[tuple[int | None, ...], tuple[tuple[float, ...], Candidate]] = {}
    for plan, microbatch in possible_plans(model, cluster, batch=batch, base=base):
        memory = memory_of(plan, transformer, microbatch)
        if memory.total > room:
            continue
        candidate = _candidate(plan, transformer, cluster, microbatch, memory)
        rank = _rank(candidate, cluster)
        layout = (plan.data, plan.shard, plan.tensor, plan.pipeline)
        if layout not in best or rank < best[layout][0]:
            best[layout] = (rank, candidate)
    return [candidate for _, candidate in sorted(best.values(), key=lambda ranked: ranked[0])]


def possible_plans(
    model: ModelFacts, cluster: ClusterFacts, *, batch: int | None, base: Plan
) -> Iterator[tuple[Plan, int]]:
    """Plans and samples of a microbatch: all that can be divided so, whatever memory they need."""
    for layout in _layouts(model, cluster, base):
        if batch is not None and batch % layout.copies:
            continue
        samples = 1 if batch is None else batch // layout.copies
        for plan, microbatch in _microbatches(layout, samples, base, known=batch is not None):
            for scheduled in _schedules(plan, model, base):
                for recompute in _recomputes(model, base):
                    yield replace(scheduled, activation_checkpoint=recompute), microbatch


def _layouts(model: ModelFacts, cluster: ClusterFacts, base: Plan) -> Iterator[Plan]:
    """Sizes of the mesh's four sides. `tensor` stays within a node: its sums cannot wait for a network."""
    world = cluster.world_size
    for tensor in _choices(base.tensor, _divisors(math.gcd(world, cluster.per_node)), allowed=model.divisible):
        for pipeline in _choices(base.pipeline, _divisors(world), allowed=model.stageable):
            if world % (tensor * pipeline):
                continue
            rest = world // tensor // pipeline
            for shard in _choices(base.shard, _divisors(rest), allowed=True):
                if rest % shard or base.data not in (None, rest // shard):
                    continue
                for zero in (1, 2, 3) if shard > 1 and base.zero == _DEFAULT.zero else (base.zero,):
                    layout = _layout(model, base, rest // shard, shard, zero, tensor, pipeline)
                    if layout is not None:
                        yield layout


def _layout(model: ModelFacts, base: Plan, data: int, shard: int, zero: int, tensor: int, pipeline: int) -> Plan | None:
    sequence = tensor > 1 and (model.sequence is None or model.sequence % tensor == 0)
    try:
        plan = replace(
            base, data=data, shard=shard, zero=zero, tensor=tensor, sequence=sequence, pipeline=pipeline,
            schedule=Schedule.ONE_F_ONE_B, stages=None, accumulate=1,
        )  # fmt: skip
        plan.check_model(model.shape)
    except InvalidPlan:
        return None  # the rules are the plan's own, and not repeated here
    return plan


def _microbatches(plan: Plan, samples: int, base: Plan, *, known: bool) -> Iterator[tuple[Plan, int]]:
    if not known:
        # Nobody said how many samples there are: as few microbatches as keep a pipeline half busy.
        yield replace(plan, accumulate=max(base.accumulate, 2 * plan.pipeline if plan.pipeline > 1 else 1)), 1
        return
    for microbatch in _divisors(samples):
        accumulate = samples // microbatch
        if microbatch > _MOST_MICROBATCH and plan.pipeline > 1:
            continue
        if base.accumulate in (1, accumulate):
            yield replace(plan, accumulate=accumulate), microbatch


def _schedules(plan: Plan, model: ModelFacts, base: Plan) -> Iterator[Plan]:
    """1F1B keeps less than GPipe and is as fast, so the latter is used only when it is asked for."""
    if plan.pipeline == 1:
        yield plan
        return
    if base.schedule is not Schedule.INTERLEAVED:
        yield replace(plan, schedule=base.schedule)
    if base.schedule is Schedule.GPIPE or plan.accumulate % plan.pipeline:
        return
    for stages in (base.stages,) if base.stages else _STAGES:
        if plan.pipeline * stages <= (model.layers or 0):
            yield replace(plan, schedule=Schedule.INTERLEAVED, stages=stages)


def _recomputes(model: ModelFacts, base: Plan) -> Iterable[Recompute]:
    if base.activation_checkpoint is not Recompute.NONE:
        return (base.activation_checkpoint,)
    return tuple(Recompute) if model.stageable else (Recompute.NONE,)


def _candidate(plan: Plan, model: Transformer, cluster: ClusterFacts, microbatch: int, memory: Memory) -> Candidate:
    timing = time_of(plan, model, cluster, microbatch)
    tokens_per_s = microbatch * plan.accumulate * plan.copies * model.sequence / timing.step
    gpu = cluster.gpu
    # By the peak of 16 bits also where products are made in 8: that is how MFU is usually given.
    peak = gpu.fp32 if plan.precision is Precision.FP32 else gpu.bf16 or gpu.fp16
    mfu = tokens_per_s * model.flops_per_token / (plan.world_size * peak * 1e12)
    return Candidate(plan=plan, microbatch=microbatch, memory=memory, timing=timing, tokens_per_s=tokens_per_s, mfu=mfu)


def _rank(candidate: Candidate, cluster: ClusterFacts) -> tuple[float, ...]:
    """Smaller is better: faster, then simpler, then smaller. On CPUs simpler first."""
    simple = _complexity(candidate.plan)
    speed = -round(math.log(candidate.tokens_per_s) / _SAME)
    if cluster.gpu.is_cpu:
        return (simple, candidate.plan.accumulate, speed, candidate.memory.total)
    return (speed, simple, candidate.memory.total, candidate.plan.accumulate)


def _complexity(plan: Plan) -> float:
    parts = (
        8 * (plan.pipeline > 1),
        4 * (plan.tensor > 1),
        2 * (plan.shard > 1),
        1 * (plan.shard > 1 and (plan.data or 1) > 1),
        {Recompute.NONE: 0, Recompute.SELECTIVE: 1, Recompute.FULL: 2}[plan.activation_checkpoint],
        0.5 * (plan.schedule is Schedule.INTERLEAVED),
    )
    return float(sum(parts))


def _choices(fixed: int, options: Iterable[int], *, allowed: bool) -> Iterable[int]:
    """The one that was asked for; else all, if the model can be divided so."""
    if fixed != 1:
        return (fixed,)
    return options if allowed else (1,)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(part for part in range(1, number + 1) if number % part == 0)
