"""What several processes have whole: tied weights, what all stages have, what each uses on its own part. It is learned
as by one process, or refused; each test starts its processes once."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.unit.job.parallel.whole import Model  # noqa: E402
from tests.unit.job.processes import run_processes  # noqa: E402
from windlass.core.plan import InvalidPlan, Plan, Precision, Schedule, parse_plan  # noqa: E402
from windlass.job.parallel.drift import _differ  # noqa: E402
from windlass.job.parallel.norm import _owners, mark_in_all_stages  # noqa: E402
from windlass.job.parallel.stages import check_stages, cut_stage, names_in_all_stages  # noqa: E402
from windlass.job.parallel.tensor import summed_names  # noqa: E402
from windlass.job.parallel.units import split_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def said_by_all(script: str, folder: Path, *, count: int = 2) -> dict[str, str]:
    """By what each line is about; all ranks say the same."""
    first, *others = run_processes(script, folder, count=count)
    lines = [line.split(": ", 1) for line in first.splitlines() if ": " in line]
    for other in others:
        assert [line.split(": ", 1) for line in other.splitlines() if ": " in line] == lines
    return dict(lines)


TENSOR = """
from tests.unit.job.parallel.whole import tell
from windlass import job

job.init()
plan = "tensor=2"
tell("tied", plan, "tied")
tell("tied, head whole", plan, "tied", tensor={"head": None})
tell("tied, both whole", plan, "tied", tensor={"head": None, "embed": None})
heads = {"blocks.*.of_q": job.Cut.SUMMED, "blocks.*.of_k": "summed"}
tell("head norms", plan, "head norms")
tell("head norms, summed", plan, "head norms", tensor=heads)
tell("head norms, summed, in two steps", plan + ",accumulate=2", "head norms", tensor=heads, together=2)
tell("a frozen scale", plan, "gate", "frozen", tensor={"gate": "summed"})
tell("head norms behind zeros", plan, "head norms", "begins with zeros")
tell("scales", plan, "scales")
tell("scales, summed", plan, "scales", tensor={"blocks.*.scale": "summed"})
plan = "tensor=2,sequence=true"
tell("sequence, scales", plan, "scales")
tell("sequence, scales named", plan, "scales", tensor={"blocks.*.scale": "norm"})
tell("sequence, a shared layer", plan, "shared", "scales", tensor={"blocks.*.scale": "norm"})
tell("sequence, all at once", plan, "head norms", "scales", "tied", tensor={"blocks.*.scale": "norm", **heads})
"""


def test_whole_parameters_under_tensor_are_learned_as_by_one_process_or_refused(tmp_path: Path) -> None:
    said = said_by_all(TENSOR, tmp_path)
    right = {what for what, words in said.items() if words == "right"}
    assert right == {
        "tied",
        "tied, both whole",
        "head norms, summed",
        "head norms, summed, in two steps",
        "a frozen scale",
        "scales",
        "sequence, scales named",
        "sequence, all at once",
    }, said
    assert "embed.weight and head.weight are one parameter" in said["tied, head whole"]
    assert "(by dimension 0 and not at all)" in said["tied, head whole"]
    for what in ("head norms", "head norms behind zeros"):
        assert "have different gradients of blocks.0.of_q.weight, blocks.0.of_k.weight" in said[what]
        assert "job.Cut.SUMMED for what is used on each rank's own heads" in said[what]
    assert "all have the same gradient of blocks.0.scale, blocks.1.scale" in said["scales, summed"]
    assert "have different gradients of blocks.0.scale" in said["sequence, scales"]
    assert "different gradients of shared.weight, shared.bias: each uses" in said["sequence, a shared layer"]


PIPELINE = """
from tests.unit.job.parallel.whole import tell
from windlass import job

job.init()
plan = "pipeline=2,accumulate=2"
tell("gate", plan, "gate")
tell("gate, in two steps", plan, "gate", together=2)
tell("gate that is frozen, interleaved", plan + ",schedule=interleaved", "gate", "frozen")
tell("shared", plan, "shared")
tell("places", plan, "places")
tell("places in first", plan, "places", first=("places",))
tell("places in first, interleaved", plan + ",schedule=interleaved", "places", first=("places",))
"""


def test_what_all_stages_have_is_learned_as_by_one_process(tmp_path: Path) -> None:
    said = said_by_all(PIPELINE, tmp_path)
    assert set(said.values()) == {"right"}, said


BOTH = """
from tests.unit.job.parallel.whole import tell
from windlass import job

job.init()
heads = {"blocks.*.of_q": "summed", "blocks.*.of_k": "summed"}
tell("stages and heads", "pipeline=2,tensor=2,accumulate=2", "gate", "head norms", tensor=heads)
tell("stages and heads, refused", "pipeline=2,tensor=2,accumulate=2", "gate", "head norms")
tell("stages and copies", "pipeline=2,data=2,accumulate=2", "gate", "places")
tell("stages and shards", "pipeline=2,shard=2,zero=1,accumulate=2", "gate", "shared")
tell("heads and shards", "shard=2,tensor=2", "head norms", "tied", tensor=heads)
tell("heads and copies", "data=2,tensor=2", "scales", "head norms", tensor=heads)
"""


def test_it_is_so_beside_copies_and_shards(tmp_path: Path) -> None:
    said = said_by_all(BOTH, tmp_path, count=4)
    assert "have different gradients of" in said.pop("stages and heads, refused")
    assert set(said.values()) == {"right"}, said


def test_a_parameter_of_the_first_stage_is_in_no_other() -> None:
    model = Model("places", "gate", first=("places",))
    stages = [cut_stage(model, split_of(model), stage, 2) for stage in range(2)]
    assert [stage.places is None for stage in stages] == [False, True]
    assert names_in_all_stages(model, split_of(model), parse_plan("pipeline=2")) == ["gate"]
    assert model.places is not None
    model = Model(first=("embed.weight",))  # in what is dropped itself
    assert cut_stage(model, split_of(model), 1, 2).embed is None


def test_what_stages_cannot_learn_together_is_refused() -> None:
    model = Model("tied")
    with pytest.raises(InvalidPlan, match=r"embed\.weight into stage 0 and head\.weight into stage 1.*untie them or"):
        check_stages(model, split_of(model), parse_plan("pipeline=2"))
    model = Model("gate")
    plan = Plan(pipeline=2, accumulate=2, schedule=Schedule.INTERLEAVED)
    with pytest.raises(InvalidPlan, match=r"all of them have gate; name in first or last .* schedule=1f1b or gpipe"):
        check_stages(model, split_of(model), plan)
    model.gate.requires_grad_(False)
    check_stages(model, split_of(model), plan)
    with pytest.raises(InvalidPlan, match=r"'head' is in first and in last of split\(\)"):
        split_of(Model(first=("head",)))


def test_names_of_parameters_are_checked_and_cut_by_norm_and_summed_only() -> None:
    for cut in ("norm", "summed"):
        model = Model("scales", tensor={"blocks.*.scale": cut})
        assert summed_names(model, split_of(model), sequence=True) == [f"blocks.{n}.scale" for n in range(4)]
    assert summed_names(model, split_of(model), sequence=False) == [f"blocks.{n}.scale" for n in range(4)]
    with pytest.raises(InvalidPlan, match=r"wants to cut 'blocks\.\*\.scale', and no module has that name"):
        split_of(Model("scales", tensor={"blocks.*.scale": "column"}))
    with pytest.raises(InvalidPlan, match=r"has 'plces' in 'first'.*did you mean 'places'"):
        split_of(Model("places", first=("plces",)))


def test_rounding_is_no_difference_and_zeros_tell_nothing() -> None:
    look = torch.tensor([[3.0, 1.0, 2.0]])
    assert _differ(torch.cat((look, look * 1.0001)), 1e-3) is False
    assert _differ(torch.cat((look, look * 1.1)), 1e-3) is True
    assert _differ(torch.cat((look, look[:, [0, 2, 1]])), 1e-3) is True
    assert _differ(torch.zeros(2, 3), 1e-3) is None
    assert _differ(torch.cat((look, look * torch.inf)), 1e-3) is None
    assert _differ(torch.cat((look, look * 0)), 1e-3) is True


def test_what_all_stages_have_counts_once_in_the_norm() -> None:
    plan = Plan(data=2, tensor=2, pipeline=2, precision=Precision.FP32)
    parameter = torch.nn.Parameter(torch.zeros(2))
    assert _owners(parameter, plan) == 4
    mark_in_all_stages(parameter)
    assert _owners(parameter, plan) == 8
