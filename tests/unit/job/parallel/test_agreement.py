"""Who reads which part of a batch: ranks of one tensor or pipeline group the same, all others parts of their own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.unit.job.processes import run_processes  # noqa: E402
from windlass.core.plan import parse_plan  # noqa: E402
from windlass.job.failures import RanksDisagree  # noqa: E402
from windlass.job.parallel.agreement import Told, _look, check_batches, is_read_twice  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
X, Y = [0.1, 0.2, 0.3], [1, 2, 1]


def told(data_rank: int, *, share: float | None = None, rows: int = 4, **looks: list[Any]) -> Told:
    return Told(data_rank=data_rank, share=share, shapes=[], rows={"inputs": rows}, looks=looks)


@pytest.mark.parametrize(("plan", "rank"), [("tensor=2,data=2", 3), ("pipeline=2,data=2,accumulate=2", 2)])
def test_ranks_of_one_group_with_different_batches_are_named(plan: str, rank: int) -> None:
    readers = {3: [0, 0, 1, 1], 2: [0, 1, 0, 1]}[rank]
    everyone = [told(reader, inputs=[reader, *X], targets=Y) for reader in readers]
    check_batches(everyone, parse_plan(plan))
    everyone[rank] = told(readers[rank], inputs=[5.0, *X], targets=Y)
    with pytest.raises(RanksDisagree) as refused:
        check_batches(everyone, parse_plan(plan))
    other = readers.index(readers[rank])
    said = str(refused.value)
    assert f"rank {rank} has other inputs than rank {other}, and under {plan.split(',')[0]} both work on part" in said
    assert "job.order(..., parallel=parallel)" in said
    assert "DistributedSampler(data, parallel.data_world, parallel.data_rank)" in said


@pytest.mark.parametrize(
    "other",
    [
        {"inputs": X, "targets": Y},
        {"inputs": X},  # zeros for what a stage has no use for are not among what is looked at
        {},
        {"inputs": [0.1, 0.2 + 1e-8, 0.3], "targets": Y},  # made on another machine
        {"inputs": [0.1, math.nan, 0.3], "targets": Y},
    ],
)
def test_what_is_the_same_or_tells_nothing_is_no_difference(other: dict[str, list[Any]]) -> None:
    for everyone in (
        [told(0, inputs=X, targets=Y), told(0, **other)],
        [told(0, **other), told(0, inputs=X, targets=Y)],
    ):
        check_batches(everyone, parse_plan("tensor=2"))
        assert not is_read_twice(everyone)


def test_a_group_is_compared_where_its_first_rank_tells_nothing() -> None:
    everyone = [told(0, inputs=X), told(0, targets=[1, 2]), told(0, targets=[1, 3])]
    with pytest.raises(RanksDisagree, match="rank 2 has other targets than rank 1"):
        check_batches(everyone, parse_plan("pipeline=3"))


def test_parts_that_are_the_same_are_told_whatever_the_groups() -> None:
    assert is_read_twice([told(reader, inputs=X) for reader in (0, 0, 1, 1)])
    assert not is_read_twice([told(reader, inputs=[reader, *X]) for reader in (0, 0, 1, 1)])
    assert not is_read_twice([told(0, inputs=X), told(1)])


def test_shares_by_rank_say_who_would_know_them() -> None:
    everyone = [told(0, share=0.5), told(0, share=0.5)]
    with pytest.raises(
        RanksDisagree, match=r"4\} as 0\.5 of it; .*under tensor=2 several .* job\.order\(\.\.\., parallel="
    ):
        check_batches(everyone, parse_plan("tensor=2"))
    with pytest.raises(RanksDisagree, match=r"samples of all$"):
        check_batches([told(0, share=0.5), told(1, share=0.1)], parse_plan("data=2"))


def test_what_is_looked_at_is_all_over_a_tensor() -> None:
    images = torch.zeros(64, 28, 28)
    images[:, 10:20, 10:20] = torch.rand(64, 10, 10)
    assert len(_look(images)) == 256
    assert len(set(_look(images))) > 10
    assert _look(images) == _look(images.clone())


SCRIPT = """
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch import nn
from tests.unit.job.parallel.models import Residual
from windlass import job
from windlass.job.failures import RanksDisagree

process = job.init()
torch.manual_seed(0)
d = TensorDataset(torch.randn(64, 4), torch.randn(64, 4))
for plan in ("tensor=2", "pipeline=2,accumulate=2"):
    for known in (False, True):
        def read(parallel):
            part = (parallel.data_world, parallel.data_rank) if known else (2, process.rank)
            return DataLoader(d, batch_size=8, sampler=DistributedSampler(d, *part))
        try:
            fit = job.Trainer(steps=2, plan=plan).fit(Residual(), read, loss=nn.functional.mse_loss)
            print(plan, float(fit.loss))
        except RanksDisagree as error:
            print(plan, error)
try:
    order = job.order(64, 8)
    job.Trainer(steps=2, plan="tensor=2").fit(
        Residual(), DataLoader(d, batch_sampler=order), loss=nn.functional.mse_loss)
except RanksDisagree as error:
    print(error)
"""


def test_a_sampler_by_ranks_is_refused_under_tensor_and_pipeline(tmp_path: Path) -> None:
    one, other = run_processes(SCRIPT, tmp_path)
    assert one == other
    *trained, shares = one.splitlines()
    assert "tensor=2 rank 1 has other inputs than rank 0, and under tensor=2 both work on part 0 of 1" in trained[0]
    assert "rank 1 has other inputs than rank 0, and under pipeline=2 both work on part 0 of 1" in trained[2]
    assert [len(line.split()) for line in (trained[1], trained[3])] == [2, 2]
    assert "job.order(..., parallel=parallel) knows who reads what" in shares
