"""What a batch may be made of, how it is cut, and what is said when processes have different ones."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from tests.unit.job.processes import run_processes  # noqa: E402
from windlass.core.plan import InvalidPlan, Plan, Schedule  # noqa: E402
from windlass.job.failures import RanksDisagree  # noqa: E402
from windlass.job.parallel.agreement import Rows  # noqa: E402
from windlass.job.parallel.batch import check_rows, cut, rows_of  # noqa: E402
from windlass.job.parallel.parallelize import parallelize  # noqa: E402
from windlass.job.parallel.pipeline import most_microbatches  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
Pair = namedtuple("Pair", ("left", "right"))


def test_everything_in_it_is_cut_along_its_first_dimension() -> None:
    batch = {
        "x": torch.arange(4),
        "pair": Pair(torch.arange(8).view(4, 2), [torch.ones(4)]),
        "name": "a",
        "scale": None,
    }
    first, second = cut(batch, 2)
    assert first["x"].tolist() == [0, 1]
    assert second["x"].tolist() == [2, 3]
    assert isinstance(second["pair"], Pair)
    assert second["pair"].left.tolist() == [[4, 5], [6, 7]]
    assert [len(part) for part in second["pair"].right] == [2]
    assert (second["name"], second["scale"]) == ("a", None)
    assert cut(batch, 1) == [batch]
    assert rows_of(batch, torch.ones(3)) == 4
    assert rows_of("nothing that tells", [torch.tensor(1.0)]) == 0


def test_what_cannot_be_cut_is_named() -> None:
    with pytest.raises(InvalidPlan, match=r"the inputs\['x'\] of this process have 5 samples, which accumulate=2"):
        check_rows({"x": torch.ones(5)}, torch.ones(4), 2)
    check_rows({"x": torch.ones(5)}, torch.ones(4), 1)


class Named(nn.Module):
    """Takes its batch by names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, batch: Any) -> Tensor:
        out: Tensor = self.layer(batch["x"]) * batch["scale"]
        return out


def test_a_mapping_is_trained_on_as_a_tensor_is() -> None:
    inputs, targets = torch.randn(8, 4), torch.randint(3, (8,))

    def loss(output: Tensor, target: Any) -> Tensor:
        return nn.functional.cross_entropy(output, target[0])

    losses = []
    for plan in ("data", "accumulate=4"):
        torch.manual_seed(0)
        parallel = parallelize(Named(), plan, loss=loss)
        batch = {"x": inputs, "scale": torch.tensor(2.0)}
        losses.append(float(parallel.step(batch, (targets,))))
        assert float(parallel.evaluate(batch, (targets,))) == pytest.approx(losses[-1])
    assert losses[0] == pytest.approx(losses[1])


def test_a_last_batch_that_is_smaller_everywhere_is_fine() -> None:
    rows = Rows()
    rows.agree(8)
    assert rows.changed_by(8) == 0
    assert rows.changed_by(6) == -2
    rows.check(6, -4, rank=0, world_size=2, step=5)
    assert rows.changed_by(6) == 0


@pytest.mark.parametrize(
    ("mine", "says"),
    [
        (8, "the batches of step 11 differ: rank 1 has 8 samples as before, and all 2 ranks together have 14"),
        (6, "rank 1 has 6 samples instead of 8 as before, and all 2 ranks together have 14"),
    ],
)
def test_a_batch_that_is_smaller_on_one_process_is_refused(mine: int, says: str) -> None:
    rows = Rows()
    rows.agree(8)
    with pytest.raises(RanksDisagree) as refused:
        rows.check(mine, -2, rank=1, world_size=2, step=11)
    assert says in str(refused.value)
    assert "drop_last=True" in str(refused.value)
    assert rows.changed_by(8) == 0


SCRIPT = """
import torch
from torch import nn
from windlass import job

process = job.init()
for same in (0, 1):
    parallel = job.parallelize(nn.Linear(4, 3), "data=2")
    draw = torch.Generator().manual_seed(process.rank * (1 - same))
    parallel.step(torch.randn(8, 4, generator=draw), torch.zeros(8, dtype=torch.int64))
for plan in ("data=2", "shard=2", "data=2,accumulate=2"):
    torch.manual_seed(0)
    parallel = job.parallelize(nn.Linear(4, 1), plan, loss=lambda output, target: (output - target).square().mean())
    for rows in (8, 8, 6, 8):
        parallel.step(torch.ones(rows, 4), torch.zeros(rows, 1))
    mine = torch.full((6 - 4 * process.rank, 1), float(process.rank))
    found = parallel.evaluate(torch.ones(len(mine), 4), mine)
    with torch.no_grad():
        out = parallel(torch.ones(1, 4)).item()
    torch.testing.assert_close(float(found), (6 * out**2 + 2 * (out - 1) ** 2) / 8, rtol=1e-5, atol=1e-6)
    try:
        parallel.step(torch.ones(8 - 2 * process.rank, 4), torch.zeros(8 - 2 * process.rank, 1))
    except Exception as error:
        print(type(error).__name__, error)
"""


def alerts_of(folder: Path) -> list[str]:
    points = [json.loads(line) for line in (folder / "metrics-0.jsonl").read_text().splitlines()]
    return [str(point) for point in points if "same_data" in str(point)]


def test_two_processes_refuse_a_late_batch_that_differs_and_evaluate_uneven_ones(tmp_path: Path) -> None:
    for rank, said in enumerate(run_processes(SCRIPT, tmp_path)):
        lines = [line for line in said.splitlines() if line.startswith("RanksDisagree")]
        assert len(lines) == 3, said
        has = ("8 samples as before", "6 samples instead of 8 as before")[rank]
        assert all(f"the batches of step 5 differ: rank {rank} has {has}" in line for line in lines)
    assert len(alerts_of(tmp_path)) == 1  # of the second loop, where both had the same batch


@pytest.mark.parametrize(
    ("rows", "schedule", "count"), [(8, "1f1b", 4), (10, "1f1b", 5), (10, "interleaved", 2), (7, "gpipe", 1)]
)
def test_an_evaluation_has_as_many_microbatches_as_divide_it(rows: int, schedule: str, count: int) -> None:
    plan = Plan(pipeline=2, accumulate=6, schedule=Schedule(schedule))
    inputs = torch.zeros(rows, 4)
    assert most_microbatches(inputs, {"y": torch.zeros(rows), "all": torch.tensor(1.0)}, plan) == count


STAGES = """
import torch
from torch import nn
from windlass import job

class Model(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.enter = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(blocks))

    def forward(self, x):
        if self.enter is not None:
            x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return x

    def split(self):
        return job.Split(blocks="blocks", first=("enter",))

def loss(output, target):
    return (output - target["y"]).square().mean()

job.init()
inputs = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
targets = {"y": torch.arange(16.0).view(4, 4)}
torch.manual_seed(0)
model = Model()
expected = loss(model(inputs), targets)
parallel = job.parallelize(model, "pipeline=2,accumulate=2", loss=loss)
for found in (parallel.evaluate(inputs, targets), parallel.step(inputs, targets)):
    torch.testing.assert_close(found, expected.detach())
for schedule in ("1f1b", "interleaved"):
    model = Model(blocks=4)
    parallel = job.parallelize(model, f"pipeline=2,accumulate=4,schedule={schedule}", loss=loss)
    for rows in (4, 3, 2, 6, 1, 5, 4):
        inputs = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))
        targets = {"y": torch.arange(4.0 * rows).view(rows, 4)}
        torch.testing.assert_close(parallel.evaluate(inputs, targets), loss(model(inputs), targets).detach())
try:
    parallel.step({"x": inputs}, targets)
except job.InvalidPlan as error:
    print(error)
"""


def test_a_pipeline_takes_targets_of_any_kind_and_number_and_one_tensor_of_inputs(tmp_path: Path) -> None:
    for said in run_processes(STAGES, tmp_path):
        assert "stages of a pipeline are given one tensor, and the inputs are of type dict" in said
