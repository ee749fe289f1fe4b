"""Copies of a model: what they must all have, and what they keep alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.job.processes import run_processes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = """
import torch
from torch import nn
from windlass import job

class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(2, 2)
        self.sometimes = nn.Parameter(torch.zeros(3))
        self.adds = True

    def forward(self, x):
        return self.used(x) + self.sometimes if self.adds else self.used(x)

process = job.init()
inputs, targets = torch.ones(4, 4), torch.zeros(4, dtype=torch.int64)
try:
    job.parallelize(Half(), "data=2").step(inputs, targets)
except job.InvalidPlan as error:
    print("never:", error)
model = Half()
model.unused.requires_grad_(False)
parallel = job.parallelize(model, "data=2")
parallel.step(inputs, targets)
model.adds = False
parallel.step(inputs, targets)
try:
    parallel.step(inputs, targets)
except job.InvalidPlan as error:
    print("once:", error)
job.parallelize(Half(), "shard=2").step(inputs, targets)

for plan in ("data=2", "shard=2"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    parallel = job.parallelize(model, plan)
    for _ in range(2):
        parallel.step(torch.randn(4, 4) + 5 * process.rank, targets)
    parallel.evaluate(inputs, targets)
    print(plan, model[1].running_mean.tolist())
"""


def test_copies_want_every_gradient_and_share_their_statistics(tmp_path: Path) -> None:
    first, second = run_processes(SCRIPT, tmp_path)
    for said in (first, second):
        assert "never: no gradient reaches these parameters: unused.weight, unused.bias; copies exchange" in said
        assert "once: parameters of the model got no gradient in the step before" in said
    assert [line for line in first.splitlines() if "=2" in line] == [
        line for line in second.splitlines() if "=2" in line
    ]
