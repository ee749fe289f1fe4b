"""`choose_plan`: the plan behind `plan: auto`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windlass.core.plan import InvalidPlan, Plan
from windlass.core.quantities import format_size
from windlass.core.wanted import Wanted
from windlass.planning.advice import refusal
from windlass.planning.facts import ClusterFacts, ModelFacts
from windlass.planning.memory import UNKNOWN_ACTIVATIONS, budget, state_memory
from windlass.planning.search import Candidate, find_candidates, zeros


def choose_plan(
    model: ModelFacts, cluster: ClusterFacts, *, batch: int | None = None, wanted: Wanted | None = None
) -> Plan:
    """The plan for a model on these processes: sized, and passing `check_model` and `check_batch`.

    `batch`: samples of a step over all processes; None: one for each process that reads data. What `wanted` names is
    kept, whatever its value. InvalidPlan if no plan fits, with what would.
    """
    wanted = wanted or Wanted(auto=True)
    if model.transformer() is None:
        return _choose_by_state(model, cluster, wanted)
    return rank_plans(model, cluster, batch=batch, wanted=wanted)[0].plan


def rank_plans(
    model: ModelFacts, cluster: ClusterFacts, *, batch: int | None, wanted: Wanted | None = None
) -> list[Candidate]:
    """The plans that fit, the best first; InvalidPlan with what would fit if there are none."""
    wanted = wanted or Wanted(auto=True)
    named = {**cluster.usual(model), **wanted.named}
    able = cluster.gpu.has(named["precision"])
    candidates = find_candidates(model, cluster, batch=batch, named=named) if able else []
    if not candidates:
        raise refusal(model, cluster, batch=batch, named=named, wanted=wanted)
    return candidates


def _choose_by_state(model: ModelFacts, cluster: ClusterFacts, wanted: Wanted) -> Plan:
    """Of a model that is no transformer: whole copies if its state leaves room, else divided as little as needed."""
    room = budget(cluster.gpu) * (1 - UNKNOWN_ACTIVATIONS)
    wanted.check_size(cluster.world_size)
    least, problem = None, None
    for divided in _divided_more_and_more(cluster.world_size, {**cluster.usual(model), **wanted.named}):
        try:
            plan = Plan(**divided).sized(cluster.world_size)
        except InvalidPlan as refused:
            problem = problem or refused
            continue
        least = state_memory(plan, model).total
        if least <= room:
            return plan
    if least is None:
        raise problem or InvalidPlan(f"{wanted} divides a model's state, and one process has nobody to divide it with")
    raise InvalidPlan(
        f"no plan fits {model.parameters:,} parameters on {cluster.world_size} × {cluster.gpu_type}: divided among all "
        f"of them their state is {format_size(least)} each, and {format_size(room)} can be used for it",
        hint="more processes divide it further; offload=true keeps it in the host's memory",
    )


def _divided_more_and_more(world: int, named: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Nothing is known of how such a model could be cut: in copies and shards, unless somebody says otherwise."""
    rest = world // (named.get("tensor", 1) * named.get("pipeline", 1))
    if "shard" in named:
        shards = [named["shard"]]
    else:
        shards = [rest // named["data"]] if named.get("data") else sorted({1, rest})
    for shard in shards:
        for zero in zeros(shard, named):
            yield {**named, "data": rest // shard, "shard": shard, "zero": zero}
