"""Where processes stand, which layers they get, and what a model is cut into. No processes are started."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.unit.job.parallel.models import Plain, batch, small_gpt  # noqa: E402
from windlass.core.plan import InvalidPlan, Plan, Schedule, parse_plan  # noqa: E402
from windlass.job.parallel.mesh import place_of  # noqa: E402
from windlass.job.parallel.parallelize import check  # noqa: E402
from windlass.job.parallel.split import Cut, Split  # noqa: E402
from windlass.job.parallel.stages import blocks_of_stages, cut_stage, stages_of  # noqa: E402
from windlass.job.parallel.tensor import _needs_sequence  # noqa: E402
from windlass.job.parallel.units import blocks_of, split_of  # noqa: E402

pytestmark = pytest.mark.torch
SIZES = st.integers(1, 4)


@given(SIZES, SIZES, SIZES, SIZES)
def test_every_process_has_a_place_of_its_own(pipeline: int, data: int, shard: int, tensor: int) -> None:
    plan = Plan(data=data, shard=shard, tensor=tensor, pipeline=pipeline)
    places = [place_of(rank, plan) for rank in range(plan.world_size)]
    assert len(set(places)) == plan.world_size
    # As many read each part of the batch as work on one copy together.
    readers = [place.data_rank for place in places]
    assert all(readers.count(part) == tensor * pipeline for part in range(plan.copies))
    # The last dimension varies fastest: processes that exchange most are neighbours.
    assert [place.tensor for place in places[:tensor]] == list(range(tensor))


@given(st.integers(1, 40), st.integers(1, 12))
def test_blocks_are_dealt_out_evenly_and_in_order(blocks: int, stages: int) -> None:
    names = [str(n) for n in range(blocks)]
    cut = blocks_of_stages(names, stages)
    assert [name for stage in cut for name in stage] == names
    counts = [len(stage) for stage in cut]
    assert max(counts) - min(counts) <= 1
    assert counts[-1] == min(counts)  # it has the head to do as well


def test_an_interleaved_process_has_every_nth_stage() -> None:
    plan = Plan(pipeline=2, schedule=Schedule.INTERLEAVED, accumulate=2)
    assert [stages_of(place, plan) for place in range(2)] == [[0, 2], [1, 3]]


def test_stages_one_after_the_other_are_the_model() -> None:
    model = small_gpt(layers=5)
    split = model.split()
    inputs, _ = batch()
    stages = [cut_stage(model, split, number, 3) for number in range(3)]
    hidden = inputs
    for stage in stages:
        hidden = stage(hidden)
    assert torch.equal(hidden, model(inputs))
    # Names and parameters are the model's own, each in one stage only; the model itself stays whole.
    whole = dict(model.named_parameters())
    parts = [dict(stage.named_parameters()) for stage in stages]
    assert sorted(name for part in parts for name in part) == sorted(whole)
    assert all(part[name] is whole[name] for part in parts for name in part)


def test_a_list_of_layers_keeps_its_names_when_it_is_cut() -> None:
    model = Plain()
    split = type(small_gpt().split())(blocks="layers", last=("last",))
    last = cut_stage(model, split, 2, 3)
    assert [name for name, _ in last.named_parameters()] == [
        "layers.2.0.weight",
        "layers.2.0.bias",
        "last.weight",
        "last.bias",
    ]


def test_repeated_layers_are_found_in_a_model_that_says_nothing() -> None:
    model = Plain()
    assert blocks_of(model, split_of(model)) == list(model.layers.children())
    assert blocks_of(torch.nn.Linear(2, 2), split_of(model)) == []


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("tensor=4", "does not divide the model's 2 key/value heads; options: 1, 2"),
        ("pipeline=8", "makes 8 stages, and the model has 4 layers; at most 4 stages fit"),
        ("precision=fp8", "precision=fp8 needs a GPU with 8-bit products (Ada, Hopper or later), and this process has"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_before_anything_starts(plan: str, says: str) -> None:
    model = small_gpt()
    with pytest.raises(InvalidPlan) as refused:
        check(parse_plan(plan), model, model.split(), torch.device("cpu"))
    assert says in str(refused.value)


@pytest.mark.parametrize("plan", ["tensor=2", "pipeline=2"])
def test_a_model_that_says_nothing_is_copied_and_sharded_only(plan: str) -> None:
    model = Plain()
    with pytest.raises(InvalidPlan, match=r"Plain has no `split\(\)`.*; use data or shard"):
        check(parse_plan(plan), model, split_of(model), torch.device("cpu"))
    check(parse_plan("data=2,shard=2"), model, split_of(model), torch.device("cpu"))


def test_products_in_8_bits_need_layers_that_fit() -> None:
    model = Plain()
    with pytest.raises(InvalidPlan, match="sizes that 16 divides, and this model has none; options: bf16"):
        check(parse_plan("precision=fp8"), model, split_of(model), torch.device("cuda"))


def test_uneven_products_are_refused_by_name() -> None:
    model = small_gpt(heads=2, kv_heads=2)
    split = model.split()
    split = type(split)(tensor=split.tensor, blocks=split.blocks)  # a model that does not count its heads
    with pytest.raises(InvalidPlan, match=r"tensor=3 does not divide the 32 rows of tokens; options: 1, 2, 4, 8"):
        check(parse_plan("tensor=3"), model, split, torch.device("cpu"))


class Described(torch.nn.Module):
    """Says of itself what a test wants it to say."""

    def __init__(self, **said: Any) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(4, 4)
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(4, 8)) for _ in range(2))
        self.leave = None  # as in a model that goes without
        self.said = said

    def split(self) -> Split:
        return Split(**self.said)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"first": ("entr",)}, "split() of Described has 'entr' in 'first', and no module has that name; did you mean"),
        ({"last": ("leave", "weight")}, "'weight' in 'last', and no module has that name; known: enter, blocks, leave"),
        ({"blocks": "blcks"}, "says blocks='blcks', and no module has that name; did you mean 'blocks'?"),
        (
            {"tensor": {"blokcs.*.0": Cut.COLUMN}},
            "wants to cut 'blokcs.*.0', and no module has that name; did you mean",
        ),
        ({"tensor": {"blocks.*.3": Cut.ROW}}, "did you mean 'blocks.*.0'?"),
        ({"tensor": {"enter": "colum"}}, "split() wants to cut 'enter': unknown cut 'colum'; did you mean 'column'?"),
        ({"tensor": {"enter": 1}}, "1 is no cut; known: job.Cut.COLUMN, job.Cut.ROW"),
        ({"first": "enter"}, "first='enter' in split() is a text, but must be a tuple of names: ('enter',)"),
    ],
)
def test_what_a_model_says_of_itself_must_be_true_of_it(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPlan) as refused:
        split_of(Described(**said))
    assert words in str(refused.value)


def test_a_cut_may_be_written_as_a_text_and_a_part_may_be_missing() -> None:
    model = Described(tensor={"blocks.*.0": "column"}, blocks="blocks", first=("enter",), last=("leave",))
    assert split_of(model).tensor == {"blocks.*.0": Cut.COLUMN}
    with pytest.raises(InvalidPlan, match=r"tensor=3 does not divide the 8 outputs of blocks\.0\.0"):
        check(parse_plan("tensor=3"), model, split_of(model), torch.device("cpu"))


def test_recomputing_needs_blocks() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    with pytest.raises(
        InvalidPlan, match="activation_checkpoint=full is for a model's repeated blocks, and this model"
    ):
        check(parse_plan("activation_checkpoint=full"), model, split_of(model), torch.device("cpu"))


def test_a_sequence_is_asked_for_where_it_is_divided() -> None:
    hook = _needs_sequence("blocks.0.0")
    with pytest.raises(InvalidPlan, match=r"what blocks\.0\.0 is given has 2: \(8, 4\); leave `sequence` out"):
        hook(torch.nn.Linear(4, 4), (torch.zeros(8, 4),))
    hook(torch.nn.Linear(4, 4), (torch.zeros(8, 5, 4),))
