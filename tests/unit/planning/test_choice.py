"""Which plans are found, which one is chosen, and what is said when there is none."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.core.plan import InvalidPlan, Plan, Precision
from windlass.core.wanted import parse_wanted
from windlass.planning import ClusterFacts, ModelFacts, choose_plan, rank_plans
from windlass.planning.memory import budget
from windlass.planning.search import SAME, find_candidates
from windlass.planning.shapes import infer_model

# Of no machine's speed: a busy one must not fail what is true.
anywhere = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEVEN_B = infer_model(7_000_000_000).model
SMALL = ModelFacts(parameters=1_000_000, layers=4, width=128, heads=4, vocabulary=1000, sequence=64)
WORLDS = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 32])


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    heads = draw(st.sampled_from([6, 8, 12, 32]))
    layers, width = draw(st.integers(1, 40)), heads * 64
    return ModelFacts(
        parameters=12 * layers * width**2 + 64_000 * width,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=draw(st.sampled_from([None, 2, heads])),
        vocabulary=32_000,
        sequence=draw(st.sampled_from([100, 1024, 4096])),
        tied=draw(st.booleans()),
        divisible=draw(st.booleans()),
        stageable=draw(st.booleans()),
    )


@anywhere
@given(model=models(), world=WORLDS, batch=st.integers(1, 64), gpu=st.sampled_from(["h100", "t4", "cpu"]))
def test_every_plan_found_is_one_that_can_be_used(model: ModelFacts, world: int, batch: int, gpu: str) -> None:
    cluster = ClusterFacts(world_size=world, gpu_type=gpu)
    named = {**cluster.usual(model), "clip": 1.0}
    for candidate in find_candidates(model, cluster, batch=batch, named=named):
        plan = candidate.plan
        assert plan.sized(world) == plan
        plan.check_model(model.shape)
        assert plan.check_batch(batch) == candidate.microbatch
        assert candidate.memory.total <= budget(cluster.gpu)
        assert 0 < candidate.mfu < 1
        assert plan.clip == 1.0
        assert plan.tensor == 1 or (model.divisible and cluster.per_node % plan.tensor == 0)
        assert plan.pipeline == 1 or model.stageable


@anywhere
@given(model=models(), world=WORLDS, memory=st.integers(1, 200), more=st.integers(1, 100))
def test_more_memory_never_means_fewer_plans(model: ModelFacts, world: int, memory: int, more: int) -> None:
    def layouts(gigabytes: int) -> set[tuple[int | None, ...]]:
        cluster = ClusterFacts(world_size=world, gpu_type="a100", memory_bytes=gigabytes * 10**9)
        found = find_candidates(model, cluster, batch=world * 4, named=cluster.usual(model))
        return {(one.plan.data, one.plan.shard, one.plan.tensor, one.plan.pipeline) for one in found}

    assert layouts(memory) <= layouts(memory + more)


@anywhere
@given(model=models(), world=WORLDS, batch=st.none() | st.integers(1, 64))
def test_a_plan_is_chosen_or_refused(model: ModelFacts, world: int, batch: int | None) -> None:
    cluster = ClusterFacts(world_size=world, gpu_type="l4")
    try:
        plan = choose_plan(model, cluster, batch=batch)
    except InvalidPlan:
        return  # and nothing else
    assert plan.world_size == world
    plan.check_model(model.shape)
    if batch is not None:
        plan.check_batch(batch)


def test_the_first_is_as_fast_as_any_and_the_rest_are_in_order() -> None:
    found = rank_plans(SEVEN_B, ClusterFacts(world_size=64, gpu_type="a100-80g"), batch=1024)
    speeds = [candidate.tokens_per_s for candidate in found]
    assert speeds[0] >= max(speeds) * (1 - SAME)
    assert speeds[1:] == sorted(speeds[1:], reverse=True)
    layouts = {(one.plan.data, one.plan.shard, one.plan.tensor, one.plan.pipeline) for one in found}
    assert len(layouts) == len(found)


def test_days_and_dollars() -> None:
    best = rank_plans(SEVEN_B, ClusterFacts(world_size=64, gpu_type="a100-80g"), batch=1024)[0]
    days = best.days(1e12)
    assert days == pytest.approx(1e12 / best.tokens_per_s / 86_400)
    assert best.dollars(1e12, 2.0) == pytest.approx(days * 24 * 64 * 2.0)


def test_what_fits_as_whole_copies_is_not_divided() -> None:
    assert choose_plan(SMALL, ClusterFacts(world_size=8, gpu_type="h100"), batch=64) == Plan(
        data=8, precision=Precision.BF16, compile=True
    )


def test_slow_networks_keep_the_parts_of_a_model_within_nodes() -> None:
    fast = choose_plan(SEVEN_B, ClusterFacts(world_size=16, gpu_type="a100-80g"), batch=32)
    slow = choose_plan(SEVEN_B, ClusterFacts(world_size=16, gpu_type="a100-80g", node_gbps=10), batch=32)
    assert (fast.data, fast.shard) == (1, 16)
    assert slow.shard * slow.tensor <= 8


@pytest.mark.parametrize(
    ("memory", "plan"),
    [(10**9, Plan(data=4)), (20 * 10**6, Plan(data=1, shard=4, zero=2, accumulate=2))],
)
def test_on_cpus_the_simplest_plan_that_fits(memory: int, plan: Plan) -> None:
    assert choose_plan(SMALL, ClusterFacts(world_size=4, gpu_type="cpu", memory_bytes=memory), batch=16) == plan


@pytest.mark.parametrize(
    "named",
    [
        "tensor=4,pipeline=2,schedule=gpipe,activation_checkpoint=full,clip=1",
        # What is named as its default is named, too.
        "zero=3",
        "shard=1,accumulate=2",
        "accumulate=1,compile=false",
        "activation_checkpoint=none,precision=fp32",
        "pipeline=2,schedule=1f1b,sequence=false,tensor=2",
        "pipeline=2,stages=3",
        "data=2,offload=true",
    ],
)
def test_what_was_asked_for_is_kept(named: str) -> None:
    model = infer_model(1_300_000_000, sequence=512).model
    wanted = parse_wanted(f"auto,{named}")
    for candidate in rank_plans(model, ClusterFacts(world_size=16, gpu_type="h100"), batch=64, wanted=wanted):
        kept = {name: getattr(candidate.plan, name) for name in wanted.named}
        assert kept == wanted.named
        assert "zero" not in wanted.named or candidate.plan.shard > 1


def test_gpus_are_compiled_for_where_their_compiler_works() -> None:
    def compiles(**facts: object) -> bool:
        return choose_plan(SMALL, ClusterFacts(world_size=8, **facts), batch=64).compile  # type: ignore[arg-type]

    assert compiles(gpu_type="h200")
    assert not compiles(gpu_type="h200", compiles=False)
    assert not compiles(gpu_type="cpu")
    wanted = parse_wanted("auto,compile")
    assert choose_plan(SMALL, ClusterFacts(world_size=8, gpu_type="cpu"), batch=64, wanted=wanted).compile


def test_plans_that_would_be_refused_are_not_found() -> None:
    model, cluster = infer_model(70_000_000_000).model, ClusterFacts(world_size=64, gpu_type="h100")
    found = rank_plans(model, cluster, batch=1024, wanted=parse_wanted("auto,precision=fp8"))
    assert {one.plan.tensor for one in found} == {1}


def test_a_black_box_is_copied_or_divided_by_its_state() -> None:
    def chosen(parameters: int, layers: int | None = None) -> Plan:
        cluster = ClusterFacts(world_size=8, gpu_type="h100")
        return choose_plan(ModelFacts(parameters=parameters, layers=layers), cluster)

    assert chosen(10**9) == Plan(data=8, precision=Precision.BF16)
    assert chosen(5 * 10**9) == Plan(data=1, shard=8, zero=2, precision=Precision.BF16)
    assert chosen(15 * 10**9, layers=40) == Plan(data=1, shard=8, precision=Precision.BF16)
    with pytest.raises(InvalidPlan, match="no plan fits 100,000,000,000 parameters on 8 × h100: divided among all"):
        chosen(10**11)


def refusal(model: ModelFacts, named: str = "", *, batch: int = 64, **cluster: object) -> InvalidPlan:
    wanted = parse_wanted(f"auto,{named}")
    with pytest.raises(InvalidPlan) as caught:
        choose_plan(model, ClusterFacts(**cluster), batch=batch, wanted=wanted)  # type: ignore[arg-type]
    return caught.value


def test_refusals_say_what_would_fit() -> None:
    model = infer_model(70_000_000_000).model
    refused = refusal(model, world_size=8, gpu_type="a100-80g")
    assert refused.message.startswith("no plan fits 70B parameters on 8 × a100-80g: the most thrifty one (data=1,")
    assert "needs 14" in refused.message
    assert refused.message.endswith("GB on each, and of its 85.0 GB a step can use 77.4 GB")
    assert refused.hint == (
        "what would fit: offload=true (state in the host's memory, and slower); 16 × a100-80g; 8 × b200"
    )
    # ... and so they do.
    choose_plan(model, ClusterFacts(world_size=16, gpu_type="a100-80g"), batch=64)
    choose_plan(model, ClusterFacts(world_size=8, gpu_type="b200"), batch=64)


def test_recomputing_and_shorter_sequences_are_offered_where_they_help() -> None:
    long = infer_model(8_000_000_000, sequence=32_768).model
    refused = refusal(long, "activation_checkpoint=selective", batch=8, world_size=8, gpu_type="a100-40g")
    assert refused.hint == ("what would fit: activation_checkpoint=full; a sequence of 16,384; 16 × a100-40g; 8 × l40s")


def test_batches_that_cannot_be_divided() -> None:
    refused = refusal(SEVEN_B, "tensor=2,pipeline=2", batch=100, world_size=64, gpu_type="h100")
    assert "a batch of 100 cannot be divided among 64 processes" in refused.message
    assert refused.hint == "a batch of 128 can"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("tensor=3", "plan auto,tensor=3 needs a multiple of 3 processes (tensor 3), and the run has 64"),
        ("precision=fp8", "a100-80g has no fp8; options: fp32, bf16, fp16"),
        ("pipeline=64", "pipeline=64 makes 64 stages, and the model has 32 layers"),
        ("shard=1,offload=true", "offload=true moves divided state"),
        ("shard=1,zero=2", "zero=2 says what is divided among the processes of `shard`, and shard is 1"),
    ],
)
def test_wishes_that_cannot_be_met(named: str, message: str) -> None:
    refused = refusal(SEVEN_B, named, world_size=64, gpu_type="a100-80g")
    assert message in refused.message


def test_what_one_process_cannot_divide_is_not_silently_left_out() -> None:
    for model in (SMALL, ModelFacts(parameters=1000)):
        refused = refusal(model, "zero=3", world_size=1, gpu_type="h100")
        assert "auto,zero=3" in refused.message


def test_when_nothing_helps_that_is_said() -> None:
    refused = refusal(infer_model(10**15).model, world_size=8, gpu_type="t4")
    assert refused.hint == "no single change that was tried is enough: not 16,384 × t4, not a larger GPU"
