"""Groups of parameters under plans that hold some of them in parts: they stay the ones that the user made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.job.processes import run_processes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = """
import copy, torch
from torch import nn
from windlass import job

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))

    def split(self):
        return job.Split(tensor={"blocks.*.0": "column", "blocks.*.2": "row"}, blocks="blocks", last=("norm", "head"))

class Counting(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            assert len({isinstance(p, torch.distributed.tensor.DTensor) for p in group["params"]}) == 1
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)

def grouped(named, rate):
    named = list(named)
    return [{"params": [p for _, p in named if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for _, p in named if p.dim() < 2], "lr": rate}]

job.init()
torch.manual_seed(0)
first = Model()
inputs, targets = torch.randn(6, 16, 8), torch.randint(4, (6, 16))
for kind, options in ((torch.optim.AdamW, {}), (torch.optim.AdamW, {"foreach": True}), (Counting, {"momentum": 0.9})):
    ours, plain = copy.deepcopy(first), copy.deepcopy(first)
    parallel = job.parallelize(ours, "tensor=2", loss=nn.functional.cross_entropy)
    optimizer = job.optimizer(parallel, kind, params=grouped(parallel.named_parameters(), 0.01), lr=0.02, **options)
    reference = (torch.optim.AdamW if kind is torch.optim.AdamW else torch.optim.SGD)(
        grouped(plain.named_parameters(), 0.01), lr=0.02, **{k: v for k, v in options.items() if k == "momentum"})
    schedules = [torch.optim.lr_scheduler.OneCycleLR(one, max_lr=[0.02, 0.01], total_steps=7)
                 for one in (optimizer.inner, reference)]
    for number, (x, y) in enumerate(zip(inputs, targets)):
        parallel.step(x, y)
        optimizer.step() if number else optimizer.inner.step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        reference.step()
        reference.zero_grad()
        for schedule in schedules:
            schedule.step()
        assert [g["lr"] for g in optimizer.param_groups] == [g["lr"] for g in reference.param_groups]
    for (name, mine), theirs in zip(ours.named_parameters(), plain.parameters()):
        mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6, msg=name)
    print([(len(g["params"]), g.get("steps")) for g in optimizer.param_groups])
    assert len(optimizer.inner.state_dict()["param_groups"]) == 2
"""


def test_groups_stay_as_they_were_made_under_tensor(tmp_path: Path) -> None:
    for said in run_processes(SCRIPT, tmp_path):
        assert said.splitlines()[-3:] == ["[(5, None), (7, None)]"] * 2 + ["[(5, 6), (7, 6)]"]
