"""Memory and time of a plan: what must hold for any model, and some numbers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.core.plan import Plan, Precision, Recompute, Schedule
from windlass.planning.facts import ClusterFacts, Transformer
from windlass.planning.memory import in_flight, layers_per_process, memory_of
from windlass.planning.network import group_of
from windlass.planning.timing import Timing, time_of

LLAMA = Transformer(
    parameters=6_740_000_000, layers=32, width=4096, heads=32, kv_heads=32, inner=11008, gated=True,
    vocabulary=32_000, sequence=4096,
)  # fmt: skip
# Of no machine's speed: a busy one must not fail what is true.
anywhere = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
BF16 = Plan(precision=Precision.BF16, compile=True)


@st.composite
def transformers(draw: st.DrawFn) -> Transformer:
    heads = draw(st.sampled_from([8, 16, 32, 64]))
    width = heads * draw(st.sampled_from([64, 128]))
    layers = draw(st.integers(2, 100))
    vocabulary = draw(st.integers(100, 200_000))
    return Transformer(
        parameters=12 * layers * width**2 + 2 * vocabulary * width,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=draw(st.sampled_from([8, heads])),
        inner=draw(st.sampled_from([3, 4])) * width,
        gated=draw(st.booleans()),
        vocabulary=vocabulary,
        sequence=draw(st.sampled_from([512, 2048, 8192])),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    tensor = draw(st.sampled_from([1, 2, 8]))
    pipeline = draw(st.sampled_from([1, 2]))
    return Plan(
        data=draw(st.sampled_from([1, 4])),
        shard=draw(st.sampled_from([1, 2, 16])),
        zero=draw(st.sampled_from([1, 2, 3])),
        tensor=tensor,
        sequence=tensor > 1 and draw(st.booleans()),
        pipeline=pipeline,
        accumulate=draw(st.sampled_from([1, 2, 8])),
        precision=draw(st.sampled_from([Precision.BF16, Precision.FP32])),
        compile=draw(st.booleans()),
        activation_checkpoint=draw(st.sampled_from(list(Recompute))),
    )


def step(plan: Plan, model: Transformer, microbatch: int, **cluster: float) -> Timing:
    facts = ClusterFacts(world_size=plan.world_size, gpu_type="h100", **cluster)  # type: ignore[arg-type]
    return time_of(plan, model, facts, microbatch)


@anywhere
@given(model=transformers(), plan=plans(), microbatch=st.integers(1, 8))
def test_more_zero_is_less_memory(model: Transformer, plan: Plan, microbatch: int) -> None:
    stages = [memory_of(replace(plan, zero=zero), model, microbatch).total for zero in (1, 2, 3)]
    assert stages == sorted(stages, reverse=True)
    divided = memory_of(replace(plan, shard=plan.shard * 2), model, microbatch).optimizer
    assert divided == pytest.approx(memory_of(plan, model, microbatch).optimizer / 2)


@anywhere
@given(model=transformers(), plan=plans(), microbatch=st.integers(1, 8))
def test_larger_microbatches_take_more(model: Transformer, plan: Plan, microbatch: int) -> None:
    assert memory_of(plan, model, microbatch).total < memory_of(plan, model, microbatch + 1).total
    assert step(plan, model, microbatch).step < step(plan, model, microbatch * 2).step + 1e-9


@anywhere
@given(model=transformers(), plan=plans(), microbatch=st.integers(1, 8))
def test_recomputing_buys_memory_with_time(model: Transformer, plan: Plan, microbatch: int) -> None:
    kept = [replace(plan, activation_checkpoint=recompute) for recompute in Recompute]
    times = [step(one, model, microbatch).step for one in kept]
    assert times == sorted(times)
    if layers_per_process(plan, model.layers) > 4:  # with fewer, the block that is computed again may outweigh it
        none, _, full = [memory_of(one, model, microbatch).total for one in kept]
        assert full < none


@anywhere
@given(model=transformers(), plan=plans(), gbps=st.floats(10, 1600))
def test_a_faster_network_is_never_slower(model: Transformer, plan: Plan, gbps: float) -> None:
    assert step(plan, model, 1, node_gbps=gbps).step >= step(plan, model, 1, node_gbps=gbps * 2).step


@anywhere
@given(model=transformers(), plan=plans())
def test_every_part_of_a_step_counts(model: Transformer, plan: Plan) -> None:
    timing = step(plan, model, 1)
    assert min(parts := astuple(timing)) >= 0
    assert timing.step == pytest.approx(sum(parts))
    assert timing.host == 0
    assert (timing.tensor > 0) == (plan.tensor > 1)
    assert (timing.bubble > 0) == (timing.messages > 0) == (plan.pipeline > 1)


def test_state_in_the_hosts_memory_costs_time() -> None:
    plans = [Plan(data=1, shard=8, zero=zero, offload=True, accumulate=4) for zero in (1, 2, 3)]
    there = [step(plan, LLAMA, 1) for plan in plans]
    here = [step(replace(plan, offload=False), LLAMA, 1) for plan in plans]
    assert all(slow.optimizer > 10 * fast.optimizer for slow, fast in zip(there, here, strict=True))
    # Of 6.74B parameters 4 bytes each, an eighth of them: there and back, with 24 GB/s.
    assert [one.host for one in there] == pytest.approx([moves * 6.74 * 4 / 8 / 24 for moves in (2, 5, 12)], rel=0.01)


def test_state_by_hand() -> None:
    """4 bytes each for parameter and gradient, 8 for Adam, 2 for the copy that products use."""
    memory = memory_of(replace(BF16, data=1), LLAMA, 1)
    whole = LLAMA.parameters
    assert memory.optimizer == pytest.approx(8 * whole)
    assert memory.parameters == pytest.approx((4 + 2) * whole)
    assert memory.gradients == pytest.approx(4 * whole)
    divided = memory_of(replace(BF16, data=1, shard=8), LLAMA, 1)
    assert divided.optimizer == pytest.approx(whole)
    assert divided.parameters == pytest.approx(whole / 2 + 2 * 2 * LLAMA.block_parameters)
    halved = memory_of(replace(BF16, data=1, tensor=2), LLAMA, 1)
    assert halved.optimizer == pytest.approx(4 * whole)
    offloaded = memory_of(replace(BF16, data=1, shard=8, offload=True), LLAMA, 1)
    assert offloaded.optimizer == 0


def test_activations_of_a_plain_block_by_hand() -> None:
    """34 bytes per position and width with dropout's masks and 32-bit statistics; without them, somewhat less."""
    gpt = replace(LLAMA, inner=4 * 4096, gated=False, vocabulary=0)
    per_block = memory_of(replace(BF16, data=1), gpt, 1).activations / 32
    assert 26 < per_block / (4096 * 4096) < 34


def test_microbatches_in_flight() -> None:
    pipe = replace(BF16, data=1, pipeline=4, accumulate=16)
    assert [in_flight(pipe, stage) for stage in range(4)] == [4, 3, 2, 1]
    assert in_flight(replace(pipe, schedule=Schedule.GPIPE), 0) == 16
    assert in_flight(replace(pipe, accumulate=2), 0) == 2
    assert in_flight(replace(pipe, schedule=Schedule.INTERLEAVED, stages=3), 0) == 4 * (1 + 3 / (4 * 3))


def test_bubbles() -> None:
    def share(**changes: object) -> float:
        plan = replace(BF16, data=1, pipeline=8, accumulate=32, **changes)  # type: ignore[arg-type]
        timing = step(plan, LLAMA, 1)
        return timing.bubble / (timing.compute + timing.tensor + timing.messages)

    assert share() == pytest.approx(7 / 32)
    assert share(schedule=Schedule.INTERLEAVED, stages=2) == pytest.approx(7 / 64)


def test_groups_know_their_links() -> None:
    cluster = ClusterFacts(world_size=64, gpu_type="h100")
    assert group_of(cluster, 8, 1).bandwidth == 450e9  # a node
    assert group_of(cluster, 8, 8).bandwidth == 50e9  # one of each node: its own card
    assert group_of(cluster, 64, 1).bandwidth == 400e9  # all: every card of a node
    slow = ClusterFacts(world_size=64, gpu_type="h100", node_gbps=100)
    assert group_of(slow, 64, 1).bandwidth == 12.5e9
