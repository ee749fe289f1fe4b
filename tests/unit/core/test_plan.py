"""Plans: how they are written, which numbers fit, and what is said of those that do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.plan import (
    Compression,
    InvalidPlan,
    ModelShape,
    OnNan,
    Plan,
    Precision,
    Recompute,
    Schedule,
    parse_plan,
)

SMALL = st.integers(1, 6)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan that obeys its own rules."""
    values: dict[str, Any] = {
        "data": draw(st.none() | SMALL),
        "shard": draw(SMALL),
        "zero": draw(st.integers(1, 3)),
        "tensor": draw(SMALL),
        "pipeline": draw(SMALL),
        "precision": draw(st.sampled_from(Precision)),
        "compile": draw(st.booleans()),
        "activation_checkpoint": draw(st.sampled_from(Recompute)),
        "clip": draw(st.none() | st.sampled_from((0.1, 1.0, 2.5))),
        "on_nan": draw(st.sampled_from(OnNan)),
    }
    values["sequence"] = values["tensor"] > 1 and draw(st.booleans())
    values["schedule"] = draw(st.sampled_from(Schedule))
    rounds = draw(SMALL)
    values["accumulate"] = rounds * (values["pipeline"] if values["schedule"] is Schedule.INTERLEAVED else 1)
    values["offload"] = values["shard"] > 1 and draw(st.booleans())
    if values["shard"] == values["tensor"] == values["pipeline"] == 1:
        values["compress"] = draw(st.none() | st.sampled_from(Compression))
    return Plan(**values)


@given(plans())
def test_a_plan_survives_text_and_json(plan: Plan) -> None:
    assert parse_plan(str(plan)) == plan
    assert parse_plan(plan.as_json()) == plan
    assert parse_plan(plan.as_dict()) == plan


@given(plans(), st.integers(1, 64))
def test_a_sized_plan_has_as_many_processes_as_there_are(plan: Plan, world_size: int) -> None:
    try:
        sized = plan.sized(world_size)
    except InvalidPlan:
        others = plan.shard * plan.tensor * plan.pipeline
        vain = (plan.shard == 1 and plan.zero < 3) or (plan.pipeline == 1 and plan.schedule != "1f1b")
        mixed = plan.precision is Precision.FP8 and plan.tensor > 1
        assert vain or mixed or world_size % others or plan.data not in (None, world_size // others)
    else:
        assert sized.world_size == world_size
        assert sized.sized(world_size) == sized


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("", Plan()),
        ("data", Plan()),
        ("data,accumulate=4", Plan(accumulate=4)),
        ("tensor=2,sequence", Plan(tensor=2, sequence=True)),
        ("Data=2,TENSOR=2", Plan(data=2, tensor=2)),
        ("shard=4, zero=2, precision=BF16", Plan(shard=4, zero=2, precision=Precision.BF16)),
        ('{"pipeline": 2, "schedule": "gpipe"}', Plan(pipeline=2, schedule=Schedule.GPIPE)),
        ("compress=none,clip=none,data=null", Plan()),
    ],
)
def test_plans_are_read(text: str, plan: Plan) -> None:
    assert parse_plan(text) == plan


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tensr=2", "unknown plan key 'tensr'; did you mean 'tensor'?"),
        ("tensor=0", "plan key 'tensor' is 0, but must be a whole number from 1"),
        ("tensor=two", "plan key 'tensor' is 'two', but must be a whole number from 1"),
        ("tensor", "plan key 'tensor' is True, but must be a whole number from 1"),
        ("shard=1.5", "plan key 'shard' is '1.5', but must be a whole number from 1"),
        ("clip=-1", "plan key 'clip' is -1.0, but must be a number above 0"),
        ("zero=4", "plan key 'zero' is 4; options: 1 (optimizer state), 2 (and gradients), 3 (and parameters)"),
        ("precision=int8", "plan key 'precision' is 'int8'; options: fp32, bf16, fp16, fp8"),
        ("compress=zip", "plan key 'compress' is 'zip'; options: none, fp16, bf16, powersgd, topk"),
        ("compile=maybe", "plan key 'compile' is 'maybe', but must be true or false"),
        ("sequence", "try tensor=2"),
        ("stages=2", "stages=2 per process need schedule=interleaved, not 1f1b"),
        ("pipeline=4,schedule=interleaved,accumulate=6", "try accumulate=4"),
        ("pipeline=2,schedule=interleaved,stages=1,accumulate=2", "use 1f1b for one"),
        ("shard=2,compress=fp16", "compress=fp16 works on whole gradients"),
        ("offload", "try shard=2 or more"),
        ("{oops", "the plan is not JSON"),
        ("data=1,data=2", "plan key 'data' is given twice; leave out one of them"),
        ('{"data": 1, "Data": 2}', "plan key 'data' is given twice"),
        ("zero=3", "zero=3 says what is divided among the processes of `shard`, and shard is 1"),
        ("auto", "unknown plan key 'auto'"),
    ],
)
def test_a_plan_that_breaks_a_rule_says_which(text: str, says: str) -> None:
    with pytest.raises(InvalidPlan) as refused:
        parse_plan(text)
    assert says in str(refused.value)


def test_a_plan_for_other_numbers_of_processes_says_which_would_fit() -> None:
    with pytest.raises(InvalidPlan, match=r"needs a multiple of 6 processes .* and the run has 8") as refused:
        Plan(shard=3, tensor=2).sized(8)
    assert refused.value.hint == "6 or 12 processes fit"
    with pytest.raises(InvalidPlan, match=r"needs 4 processes .* and the run has 8") as refused:
        Plan(data=2, tensor=2).sized(8)
    assert refused.value.hint == "with 8 processes, data=4 fits"
    with pytest.raises(InvalidPlan) as refused:
        Plan(data=2, tensor=3).sized(2)
    assert refused.value.hint == "6 processes fit"
    with pytest.raises(InvalidPlan) as refused:
        Plan(tensor=4).sized(2)
    assert refused.value.hint == "4 processes fit"
    assert str(refused.value).endswith("and the run has 2; 4 processes fit")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("zero=1", "zero=1 says what is divided among the processes of `shard`, and shard is 1; try shard=8"),
        ("zero=2,data=2,tensor=2", "try shard=2"),
        ("zero=2,data=8", "more processes have it, with shard=2"),
        ("schedule=gpipe", "schedule=gpipe is an order of work in a pipeline, and pipeline is 1"),
        ("stages=2,schedule=interleaved", "schedule=interleaved is an order of work in a pipeline"),
        ("tensor=2,precision=fp8", "precision=fp8 scales whole weights, and tensor=2 divides them"),
    ],
)
def test_what_a_plan_says_in_vain_is_refused_when_it_is_to_be_used(text: str, says: str) -> None:
    plan = parse_plan(text)
    with pytest.raises(InvalidPlan) as refused:
        plan.sized(8)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("plan", "shape", "says"),
    [
        ("tensor=3", ModelShape(heads=8), "does not divide the model's 8 heads; options: 1, 2, 4, 8"),
        ("tensor=4", ModelShape(heads=8, kv_heads=2), "the model's 2 key/value heads; options: 1, 2"),
        ("tensor=4,sequence", ModelShape(sequence=6), "does not divide the sequence of 6; options: 1, 2, 3, 6"),
        ("pipeline=8", ModelShape(layers=6), "makes 8 stages, and the model has 6 layers; at most 6 stages fit"),
        ("pipeline=4,schedule=interleaved,accumulate=4", ModelShape(layers=6), "makes 8 stages"),
        ("pipeline=2", ModelShape(layers=6, tied=True), "untie the head or use pipeline=1"),
    ],
)
def test_a_plan_that_a_model_cannot_be_cut_by_says_what_would(plan: str, shape: ModelShape, says: str) -> None:
    with pytest.raises(InvalidPlan) as refused:
        parse_plan(plan).check_model(shape)
    assert says in str(refused.value)


def test_what_is_not_known_of_a_model_refuses_nothing() -> None:
    parse_plan("tensor=3,pipeline=5").check_model(ModelShape())


def test_a_batch_is_divided_evenly_or_refused_with_its_neighbours() -> None:
    plan = Plan(data=2, shard=2, accumulate=2)
    assert plan.check_batch(32) == 4
    with pytest.raises(InvalidPlan, match=r"a batch of 20 is not divided by 8 .* 16 or 24 would be"):
        plan.check_batch(20)
    with pytest.raises(InvalidPlan, match=r"; 8 would be"):
        plan.check_batch(4)
    with pytest.raises(InvalidPlan) as refused:
        Plan(data=2, accumulate=3).check_batch(20)
    assert refused.value.hint == "accumulate for this batch: options: 1, 2, 5, 10"
