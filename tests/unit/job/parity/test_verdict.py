"""What parity checks and how it judges. Nothing is trained here; see tests/integration/test_parity.py."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from windlass.core.plan import Compression, Plan, Precision, Recompute, Schedule  # noqa: E402
from windlass.job.parity.__main__ import main  # noqa: E402
from windlass.job.parity.cases import Case, cases_for  # noqa: E402
from windlass.job.parity.measure import sent_bytes  # noqa: E402
from windlass.job.parity.training import CONFIG  # noqa: E402
from windlass.job.parity.verdict import judge, largest_difference, render_row, render_summary  # noqa: E402
from windlass.job.parity.workers import Outcome  # noqa: E402
from windlass.job.recipes.gpt import GPT  # noqa: E402

pytestmark = pytest.mark.torch
REFERENCE = [4.0, 3.0, 2.0]


def outcome(losses: list[float], plan: Plan | None = None, error: str | None = None) -> Outcome:
    return Outcome(case=Case(plan=plan or Plan(data=2)), losses=losses, error=error, footprint={"peak": 2_500_000})


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_every_case_fits_its_processes_and_the_model(world_size: int) -> None:
    shape = GPT(CONFIG).split().shape
    cases = cases_for(world_size)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.plan.world_size == world_size
        case.plan.check_model(shape)
        case.plan.check_batch(16)


def test_every_option_of_a_plan_is_among_the_cases() -> None:
    plans = [case.plan for n in (1, 2, 4, 8) for case in cases_for(n)]
    assert {plan.zero for plan in plans if plan.shard > 1} == {1, 2, 3}
    assert {plan.schedule for plan in plans if plan.pipeline > 1} == set(Schedule)
    assert {plan.compress for plan in plans} == {None, *Compression}
    assert {plan.activation_checkpoint for plan in plans} == set(Recompute)
    assert {plan.precision for plan in plans} == set(Precision) - {Precision.FP8}  # no CPU has it
    assert any(plan.sequence and plan.pipeline > 1 for plan in plans)
    assert any(plan.offload for plan in plans)
    assert any(plan.clip and plan.tensor > 1 and plan.pipeline > 1 for plan in plans)
    # All products of two kinds of parallelism and more.
    parts = ("data", "shard", "tensor", "pipeline")
    products = {tuple(part for part in parts if getattr(plan, part) > 1) for plan in plans}
    assert products == {tuple(p for i, p in enumerate(parts) if n >> i & 1) for n in range(15)}


def test_exact_plans_have_the_tight_bound() -> None:
    assert Case(plan=Plan(shard=2, tensor=2, clip=1.0)).bound == 1e-5
    assert Case(plan=Plan(precision=Precision.BF16)).bound > 1e-5
    assert Case(plan=Plan(compress=Compression.TOPK)).bound > 1e-5


def test_the_largest_difference_of_any_step_counts() -> None:
    assert largest_difference([4.0, 3.3, 2.0], REFERENCE) == pytest.approx(0.1)
    assert largest_difference([4.0, 3.0], REFERENCE) == math.inf
    assert largest_difference([4.0, math.nan, 2.0], REFERENCE) == math.inf
    assert largest_difference([], []) == math.inf


def test_rows_say_what_agrees_differs_and_fails() -> None:
    good = judge(outcome([4.0, 3.0, 2.00001]), REFERENCE, 2)
    bad = judge(outcome([4.0, 3.1, 2.0]), REFERENCE, 2)
    broken = judge(outcome([], error="rank 1:\nValueError"), REFERENCE, 2)
    assert [row.agrees for row in (good, bad, broken)] == [True, False, False]
    assert [render_row(row).split()[-1] for row in (good, bad, broken)] == ["ok", "DIFFERS", "FAILED"]
    assert "2.50M" in render_row(good)
    summary = render_summary([good, bad, broken])
    assert summary.startswith("1 of 3 plans agree with one process.")
    assert "rank 1:\nValueError" in summary


def test_a_lossy_plan_must_learn_all_the_same() -> None:
    lossy = Plan(data=2, compress=Compression.TOPK)
    reference = [4.0, 3.5, 3.0]
    assert judge(outcome([4.0, 3.7, 3.3], lossy), reference, 2).agrees
    assert not judge(outcome([4.0, 3.9, 3.8], lossy), reference, 2).agrees  # within the bound, and stuck


def test_bytes_are_those_of_a_ring() -> None:
    assert sent_bytes("aten::mm", (torch.zeros(2),)) == 0
    # Outside a group of several, nothing goes anywhere.
    assert sent_bytes("c10d::allreduce_", ([torch.zeros(8)],)) == 0
    assert sent_bytes("c10d::send", ([torch.zeros(8)],)) == 32


def test_the_list_of_plans_is_printed_without_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--procs", "2", "--only", "sequence", "--list"]) == 0
    assert "tensor=2,sequence=true" in capsys.readouterr().out
    assert main(["--procs", "2", "--only", "nothing like it"]) == 2
    assert "no plan matches 'nothing like it'; see --list" in capsys.readouterr().err


def test_numbers_of_processes_that_do_not_divide_the_batch_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--procs", "2,3"])
    assert "3 processes do not divide the batch of 16 samples" in capsys.readouterr().err
