"""Every plan that a world size, a model and a batch allow, with the memory and time of each: `find_candidates`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from windlass.core.plan import InvalidPlan, Plan, Precision, Recompute, Schedule
from windlass.planning.facts import ClusterFacts, ModelFacts, Transformer
from windlass.planning.memory import Memory, budget, memory_of
from windlass.planning.timing import Timing, time_of

_STAGES = (2, 3, 4)  # per process, when interleaved; more only adds messages
_MOST_MICROBATCH = 64
# Predictions that differ by less are the same: nobody wants a pipeline, or the last gigabyte, for so little.
SAME = 0.02
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


def find_candidates(
    model: ModelFacts, cluster: ClusterFacts, *, batch: int | None, named: Mapping[str, Any]
) -> list[Candidate]:
    """Those that fit the memory, the best first, one for each way to divide the processes.

    `batch`: samples of a step; None: one microbatch of one sample for each process that reads data. All of them have
    the values of `named`, and defaults for what is not chosen here. Empty if nothing fits, or the model's shape is not
    known.
    """
    transformer = model.transformer()
    if transformer is None:
        return []
    room = budget(cluster.gpu)
    layouts: dict[tuple[int | None, ...], list[Candidate]] = {}
    fitted: tuple[object, ...] = ()
    for plan, microbatch in possible_plans(model, cluster, batch=batch, named=named, room=room):
        division = (plan.data, plan.shard, plan.zero, plan.tensor, plan.pipeline, plan.total_stages, plan.accumulate)
        if division == fitted:
            continue  # it fits with less recomputing, and then it is faster
        memory = memory_of(plan, transformer, microbatch)
        if memory.total <= room:
            fitted = division
            layout = (plan.data, plan.shard, plan.tensor, plan.pipeline)
            layouts.setdefault(layout, []).append(_candidate(plan, transformer, cluster, microbatch, memory))
    found = [_preferred(candidates, cluster) for candidates in layouts.values()]
    found.sort(key=lambda candidate: -candidate.tokens_per_s)
    if found:
        first = _preferred(found, cluster)
        found.remove(first)
        found.insert(0, first)
    return found


def possible_plans(
    model: ModelFacts,
    cluster: ClusterFacts,
    *,
    batch: int | None,
    named: Mapping[str, Any],
    room: float = math.inf,
) -> Iterator[tuple[Plan, int]]:
    """Plans and samples of a microbatch: all that can be divided so, unless the state alone takes more than `room`."""
    transformer = model.transformer()
    for layout in _layouts(model, cluster, named):
        if batch is not None and batch % layout.copies:
            continue
        if transformer is not None and memory_of(layout, transformer, 0).total > room:
            continue
        for accumulate, microbatch in _microbatches(layout, batch, named):
            for schedule, stages in _schedules(layout.pipeline, accumulate, model, named):
                way = {"schedule": schedule, "stages": stages, "accumulate": accumulate}
                plan = _usable(layout, way, model, cluster)
                if plan is None:
                    continue
                for recompute in _recomputes(model, named):
                    yield replace(plan, activation_checkpoint=recompute), microbatch


def _layouts(model: ModelFacts, cluster: ClusterFacts, named: Mapping[str, Any]) -> Iterator[Plan]:
    """Plans that differ in the mesh and in what is divided, of one microbatch each."""
    later = {"schedule", "stages", "accumulate"}
    kept = {name: value for name, value in named.items() if name not in later}
    for data, shard, tensor, pipeline in _meshes(model, cluster, named):
        sides = {"data": data, "shard": shard, "tensor": tensor, "pipeline": pipeline}
        sequence = tensor > 1 and (model.sequence is None or model.sequence % tensor == 0)
        for zero in zeros(shard, named):
            plan = _usable(Plan(), {"sequence": sequence, **kept, **sides, "zero": zero}, model, cluster)
            if plan is None:
                break
            yield plan


def _usable(start: Plan, changes: Mapping[str, Any], model: ModelFacts, cluster: ClusterFacts) -> Plan | None:
    """None if no plan comes of it: the rules are the plan's own, and not repeated here."""
    try:
        plan = replace(start, **changes).sized(cluster.world_size)
        plan.check_model(model.shape)
    except InvalidPlan:
        return None
    return plan


def zeros(shard: int, named: Mapping[str, Any]) -> Sequence[int]:
    """What of the state may be divided; nothing at all if that was named and there is nothing to divide among."""
    if "zero" in named:
        return (named["zero"],) if shard > 1 else ()
    return (1, 2, 3) if shard > 1 else (3,)


def _meshes(model: ModelFacts, cluster: ClusterFacts, named: Mapping[str, Any]) -> Iterator[tuple[int, int, int, int]]:
    """Sizes of the four sides. `tensor` stays within a node: its sums cannot wait for a network."""
    world, data = cluster.world_size, named.get("data")
    near = _divisors(math.gcd(world, cluster.per_node)) if model.divisible else (1,)
    for tensor in _choices(named, "tensor", near):
        for pipeline in _choices(named, "pipeline", _divisors(world) if model.stageable else (1,)):
            if world % (tensor * pipeline):
                continue
            rest = world // tensor // pipeline
            for shard in _choices(named, "shard", _divisors(rest)):
                if rest % shard == 0 and data in (None, rest // shard):
                    yield rest // shard, shard, tensor, pipeline


def _microbatches(layout: Plan, batch: int | None, named: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """How many of them, and how many samples each has."""
    if batch is None:
        # Nobody said how many samples there are: as few microbatches as keep a pipeline busy for the most part.
        yield named.get("accumulate", 2 * layout.pipeline if layout.pipeline > 1 else 1), 1
        return
    samples = batch // layout.copies
    for microbatch in _divisors(samples):
        accumulate = samples // microbatch
        if microbatch <= _MOST_MICROBATCH and named.get("accumulate", accumulate) == accumulate:
            yield accumulate, microbatch


def _schedules(
    pipeline: int, accumulate: int, model: ModelFacts, named: Mapping[str, Any]
) -> Iterator[tuple[Schedule, int | None]]:
    """1F1B keeps less than GPipe and is as fast, so the latter is used only when it is asked for."""
    asked, stages = named.get("schedule"), named.get("stages")
    if pipeline == 1:
        yield asked or Schedule.ONE_F_ONE_B, stages
        return
    if asked is not Schedule.INTERLEAVED and stages in (None, 1):
        yield asked or Schedule.ONE_F_ONE_B, stages
    if asked not in (None, Schedule.INTERLEAVED) or accumulate % pipeline or stages == 1:
        return
    for count in (stages,) if stages else _STAGES:
        if pipeline * count <= (model.layers or 0):
            yield Schedule.INTERLEAVED, count


def _recomputes(model: ModelFacts, named: Mapping[str, Any]) -> Iterable[Recompute]:
    if "activation_checkpoint" in named:
        return (named["activation_checkpoint"],)
    return tuple(Recompute) if model.stageable else (Recompute.NONE,)


def _candidate(plan: Plan, model: Transformer, cluster: ClusterFacts, microbatch: int, memory: Memory) -> Candidate:
    timing = time_of(plan, model, cluster, microbatch)
    tokens_per_s = microbatch * plan.accumulate * plan.copies * model.sequence / timing.step
    gpu = cluster.gpu
    # By the peak of 16 bits also where products are made in 8: that is how MFU is usually given.
    peak = gpu.fp32 if plan.precision is Precision.FP32 else gpu.bf16 or gpu.fp16
    mfu = tokens_per_s * model.flops_per_token / (plan.world_size * peak * 1e12)
    return Candidate(plan=plan, microbatch=microbatch, memory=memory, timing=timing, tokens_per_s=tokens_per_s, mfu=mfu)


def _preferred(candidates: Sequence[Candidate], cluster: ClusterFacts) -> Candidate:
    """Of those that are about as fast as the fastest, the simplest, and then the one with most memory to spare."""
    if cluster.gpu.is_cpu:
        return min(candidates, key=lambda one: (_complexity(one.plan), one.plan.accumulate, one.timing.step))
    fastest = max(candidate.tokens_per_s for candidate in candidates)
    fast = [candidate for candidate in candidates if candidate.tokens_per_s >= fastest * (1 - SAME)]
    return min(fast, key=lambda one: (_complexity(one.plan), one.memory.total, one.plan.accumulate))


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


def _choices(named: Mapping[str, Any], side: str, options: Iterable[int]) -> Iterable[int]:
    """The one that was asked for, else all that the model and the cluster allow."""
    return (named[side],) if side in named else options


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(part for part in range(1, number + 1) if number % part == 0)
