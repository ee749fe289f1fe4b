"""Why no plan fits, and what would: `refusal`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from windlass.core.plan import InvalidPlan, Plan, Precision, Recompute
from windlass.core.quantities import format_size
from windlass.core.wanted import Wanted
from windlass.planning.counts import format_count
from windlass.planning.facts import ClusterFacts, ModelFacts
from windlass.planning.gpus import GPUS
from windlass.planning.memory import budget, memory_of
from windlass.planning.search import find_candidates, possible_plans

_MOST_GPUS = 16_384


def refusal(
    model: ModelFacts, cluster: ClusterFacts, *, batch: int | None, named: Mapping[str, Any], wanted: Wanted
) -> InvalidPlan:
    """`named`: what plans were to have; `wanted`: what of it somebody asked for."""
    gpu = cluster.gpu
    where = f"{cluster.world_size} × {gpu.name}"
    if not gpu.has(named["precision"]):
        has = [str(precision) for precision in Precision if gpu.has(precision)]
        return InvalidPlan(f"{gpu.name} has no {named['precision']}; options: {', '.join(has)}")
    transformer = model.transformer()
    assert transformer is not None  # who asks has searched
    needs = [
        (memory_of(plan, transformer, microbatch).total, plan)
        for plan, microbatch in possible_plans(model, cluster, batch=batch, named=named)
    ]
    if not needs:
        return _indivisible(model, cluster, batch, named, wanted)
    least, plan = min(needs, key=lambda need: need[0])
    message = (
        f"no plan fits {format_count(model.parameters)} parameters on {where}: the most thrifty one ({plan}) needs "
        f"{format_size(least)} on each, and of its {format_size(gpu.memory_bytes)} a step can use "
        f"{format_size(budget(gpu))}"
    )
    ways = list(_ways_out(model, cluster, batch, named))
    nothing = f"no single change that was tried is enough: not {_MOST_GPUS:,} × {gpu.name}, not a larger GPU"
    return InvalidPlan(message, hint="what would fit: " + "; ".join(ways) if ways else nothing)


def _indivisible(
    model: ModelFacts, cluster: ClusterFacts, batch: int | None, named: Mapping[str, Any], wanted: Wanted
) -> InvalidPlan:
    world = cluster.world_size
    if batch is not None and find_candidates(model, cluster, batch=None, named=named):
        fitting = max(world, round(batch / world) * world)
        return InvalidPlan(
            f"a batch of {batch} cannot be divided among {world} processes in any way that the model allows",
            hint=f"a batch of {fitting} can",
        )
    wanted.check_size(world)  # raises what is wrong with it, if it is this
    if problem := _problem(model, cluster, named):
        return problem
    return InvalidPlan(
        f"{world} processes cannot be divided as asked ({wanted}) for a model of {model.layers} layers and "
        f"{model.heads} heads",
        hint="ask for less: leave out tensor, pipeline, shard or accumulate",
    )


def _problem(model: ModelFacts, cluster: ClusterFacts, named: Mapping[str, Any]) -> InvalidPlan | None:
    """What is wrong with what was asked for, by itself or with this model, if that is all that is asked for."""
    rest = cluster.world_size // (named.get("shard", 1) * named.get("tensor", 1) * named.get("pipeline", 1))
    try:
        plan = Plan(**{**named, "data": None})
        replace(plan, data=max(1, rest)).sized(cluster.world_size).check_model(model.shape)
    except InvalidPlan as problem:
        return problem
    return None


def _ways_out(model: ModelFacts, cluster: ClusterFacts, batch: int | None, named: Mapping[str, Any]) -> Iterator[str]:
    """One change each, tried out; the cheapest to make first."""
    full = {**named, "activation_checkpoint": Recompute.FULL}
    # A search tries it of itself, unless something milder was asked for.
    if named != full and _fits(model, cluster, batch, full):
        yield "activation_checkpoint=full"
    if batch is not None and model.sequence:
        sequence = model.sequence // 2
        while sequence >= 256:
            if _fits(replace(model, sequence=sequence), cluster, batch, named):
                yield f"a sequence of {sequence:,}"
                break
            sequence //= 2
    can_offload = cluster.world_size > 1 and not named.get("offload") and not named.get("compress")
    if can_offload and _fits(model, cluster, batch, {**named, "offload": True}):
        yield "offload=true (state in the host's memory, and slower)"
    gpus = cluster.world_size * 2
    while gpus <= _MOST_GPUS:
        more = replace(cluster, world_size=gpus)
        if _fits(model, more, None if batch is None else max(batch, gpus), named):
            yield f"{gpus:,} × {cluster.gpu.name}"
            break
        gpus *= 2
    larger = [gpu for gpu in GPUS.values() if gpu.memory_bytes > cluster.gpu.memory_bytes and not cluster.gpu.is_cpu]
    for gpu in sorted(larger, key=lambda gpu: gpu.memory_bytes):
        other = replace(cluster, gpu_type=gpu.name, memory_bytes=None, device=None)
        if gpu.has(named["precision"]) and _fits(model, other, batch, named):
            yield f"{cluster.world_size:,} × {gpu.name}"
            break


def _fits(model: ModelFacts, cluster: ClusterFacts, batch: int | None, named: Mapping[str, Any]) -> bool:
    transformer, room = model.transformer(), budget(cluster.gpu)
    assert transformer is not None
    return any(
        memory_of(plan, transformer, microbatch).total <= room
        for plan, microbatch in possible_plans(model, cluster, batch=batch, named=named, room=room)
    )
