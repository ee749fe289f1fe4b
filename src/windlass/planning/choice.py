"""`choose_plan`: the plan behind `plan: auto`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from windlass.core.plan import InvalidPlan, Plan, Precision
from windlass.core.quantities import format_size
from windlass.planning.advice import refusal
from windlass.planning.facts import ClusterFacts, ModelFacts
from windlass.planning.memory import UNKNOWN_ACTIVATIONS, budget, state_memory
from windlass.planning.search import Candidate, find_candidates


def choose_plan(
    model: ModelFacts, cluster: ClusterFacts, *, batch: int | None = None, base: Plan | None = None
) -> Plan:
    """The plan for a model on these processes: sized, and passing `check_model` and `check_batch`.

    `batch`: samples of a step over all processes; None: one for each process that reads data. `base`: whatever differs
    from the defaults there is kept; a precision of fp32 becomes what the device does best. InvalidPlan if no plan
    fits, with what would.
    """
    base = base or Plan()
    if base.precision is Precision.FP32:
        base = replace(base, precision=cluster.default_precision())
    if model.transformer() is None:
        return _choose_by_state(model, cluster, base)
    return rank_plans(model, cluster, batch=batch, base=base)[0].plan


def rank_plans(model: ModelFacts, cluster: ClusterFacts, *, batch: int | None, base: Plan) -> list[Candidate]:
    """The plans that fit, the best first; InvalidPlan with what would fit if there are none."""
    able = cluster.gpu.has(base.precision)
    candidates = find_candidates(model, cluster, batch=batch, base=base) if able else []
    if not candidates:
        raise refusal(model, cluster, batch=batch, base=base)
    return candidates


def _choose_by_state(model: ModelFacts, cluster: ClusterFacts, base: Plan) -> Plan:
    """Of a model that is no transformer: whole copies if its state leaves room, else divided as little as needed."""
    room = budget(cluster.gpu) * (1 - UNKNOWN_ACTIVATIONS)
    least = None
    for plan in _divided_more_and_more(cluster.world_size, base):
        least = state_memory(plan, model).total
        if least <= room:
            return plan
    if least is None:
        return base.sized(cluster.world_size)  # which says what is wrong with it
    raise InvalidPlan(
        f"no plan fits {model.parameters:,} parameters on {cluster.world_size} × {cluster.gpu_type}: divided among all "
        f"of them their state is {format_size(least)} each, and {format_size(room)} can be used for it",
        hint="more processes divide it further; offload=true keeps it in the host's memory",
    )


def _divided_more_and_more(world: int, base: Plan) -> Iterator[Plan]:
    if base != replace(base, shard=1, tensor=1, pipeline=1, data=None):
        yield base.sized(world)  # somebody decided
        return
    if not base.offload:
        yield replace(base, data=world)
    if world > 1 and not base.compress:
        for zero in (1, 2, 3):
            yield replace(base, data=1, shard=world, zero=zero)
