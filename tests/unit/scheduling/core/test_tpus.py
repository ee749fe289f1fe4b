"""TPUs are in the slots of GPUs: placed, counted and guaranteed like them, and never taken for them."""

from __future__ import annotations

import pytest

from tests.unit.scheduling.core.clusters import node, policy, running, share, snapshot, started, waiting, want
from windlass.core.accelerators import ANY_TPU
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.types import Project, Want

V5E = "tpu:v5e"


def tpus(amount: float = 4, **more: object) -> Want:
    return want(gpus=amount, **{"gpu_type": V5E, **more})


@pytest.mark.parametrize(
    ("wanted", "where"),
    [(tpus(), "v5e"), (tpus(gpu_type=ANY_TPU), "v4"), (tpus(gpu_type="tpu:v4"), "v4"), (want(gpus=4), "gpu")],
)
def test_each_goes_to_nodes_of_its_kind(wanted: Want, where: str) -> None:
    nodes = [
        node("v4", gpus=4, gpu_type="tpu:v4", price_per_hour=1.0),
        node("v5e", gpus=4, gpu_type=V5E, price_per_hour=2.0),
        node("gpu", gpus=4, gpu_type="h100", price_per_hour=9.0),
    ]
    [start] = decide(snapshot([waiting("r", wanted)], nodes), policy(), 0.0).starts
    assert [each.node for each in start.placement.shares] == [where]
    assert start.placement.shares[0].gpu_indices == (0, 1, 2, 3)


def test_a_gang_of_tpus_is_whole_and_within_a_slice() -> None:
    slices = {"a": "s1", "b": "s2", "c": "s1", "d": "s2"}
    nodes = [node(name, gpus=4, gpu_type=V5E, topology=("zone", pool)) for name, pool in slices.items()]
    nodes.append(node("e", gpus=4, gpu_type="h100"))
    [start] = decide(snapshot([waiting("r", tpus(nodes=2))], nodes), policy(), 0.0).starts
    assert len({slices[each.node] for each in start.placement.shares}) == 1
    assert started(snapshot([waiting("r", tpus(nodes=5))], nodes)) == []


def test_quotas_and_limits_name_either_kind() -> None:
    nodes = [node("t", gpus=8, gpu_type=V5E), node("g", gpus=8, gpu_type="h100")]
    asked = [waiting("t1", tpus()), waiting("t2", tpus()), waiting("g1", want(gpus=4)), waiting("g2", want(gpus=4))]

    def allowed(**limit: float) -> set[str]:
        named = {resource.replace("_", ":"): most for resource, most in limit.items()}
        return set(started(snapshot(asked, nodes, projects=[Project(name="p", limit=named)])))

    assert allowed() == {"t1", "t2", "g1", "g2"}
    assert allowed(tpu=4) == {"t1", "g1", "g2"}
    assert allowed(gpu=4) == {"t1", "t2", "g1"}
    assert allowed(tpu_v5e=4) == {"t1", "g1", "g2"}
    assert allowed(tpu_v4=0) == {"t1", "t2", "g1", "g2"}
    assert allowed(gpu_h100=4) == {"t1", "t2", "g1"}


def test_a_quota_of_tpus_is_reclaimed_from_who_borrowed_them_and_from_nobody_else() -> None:
    nodes = [node("t", gpus=4, gpu_type=V5E), node("g", gpus=4, gpu_type="h100")]
    held = [
        running("lent", share("t", gpus=4), project="q", wants=tpus(), saves_on_notice=True),
        running("other", share("g", gpus=4), project="q", saves_on_notice=True),
    ]
    projects = [Project(name="p", quota={"tpu": 4})]
    there = snapshot([waiting("r", tpus())], nodes, running=held, projects=projects)
    assert [stop.run_id for stop in decide(there, policy(), 10_000.0).stops] == ["lent"]
