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


NORMS = """
import torch
from torch import nn
from windlass import job

class Block(nn.Module):
    def __init__(self, affine):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, affine=affine), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x):
        return x + self.body(x)

process = job.init()
draw = torch.Generator().manual_seed(process.rank)
batches = [(torch.randn(16, 8, generator=draw), torch.randint(4, (16,), generator=draw)) for _ in range(6)]
for low in ("bf16", "fp16"):
    for plan in ("data=2", "shard=2", "shard=2,activation_checkpoint=full"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1), nn.Flatten(), nn.BatchNorm1d(8),
                              nn.Sequential(Block(True), Block(False)), nn.Linear(8, 4))
        loss = lambda output, targets: nn.functional.cross_entropy(output.float(), targets)
        parallel = job.parallelize(model, f"{plan},precision={low}", loss=loss)
        optimizer = job.optimizer(parallel, torch.optim.SGD, lr=0.1)
        for x, y in batches:
            found = parallel.step(x[:, None], y)
            optimizer.step()
            optimizer.zero_grad()
        norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm1d))
        print(float(found), float(parallel.evaluate(x[:, None], y)), norm.running_var.dtype, norm.weight.dtype)
"""


def test_batch_norms_stay_exact_in_low_precision_when_sharded(tmp_path: Path) -> None:
    for said in run_processes(NORMS, tmp_path):
        lines = [line.split() for line in said.splitlines()]
        for first in (0, 3):
            copied, *sharded = ([float(number) for number in line[:2]] for line in lines[first : first + 3])
            assert all(found == pytest.approx(copied, rel=0.02) for found in sharded), said
        assert all(line[2:] == ["torch.float32"] * 2 for line in lines)


KINDS = """
import copy, torch
from torch import nn
from windlass import job

class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=8))

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.bag = nn.Embedding(20, 8, sparse=True), nn.EmbeddingBag(20, 8, sparse=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        ids = (x.abs() * 8).long().clamp(max=19)
        return self.last(self.table(ids[:, 0]) + self.bag(ids))

process = job.init()
for kind in (Waves, Words):
    for plan in ("data=2,clip=0.1", "data=2,accumulate=2"):
        torch.manual_seed(0)
        model = kind()
        plain = copy.deepcopy(model)
        parallel = job.parallelize(model, plan, loss=nn.functional.cross_entropy)
        optimizer = job.optimizer(parallel, torch.optim.SGD, lr=0.5)
        reference = torch.optim.SGD(plain.parameters(), lr=0.5, foreach=False)
        draw = torch.Generator().manual_seed(1)
        for _ in range(3):
            x, y = torch.randn(8, 8, generator=draw), torch.randint(3, (8,), generator=draw)
            mine = slice(4 * process.rank, 4 * process.rank + 4)
            parallel.step(x[mine], y[mine])
            report = optimizer.step()
            optimizer.zero_grad()
            nn.functional.cross_entropy(plain(x), y).backward()
            grads = [p.grad.to_dense() for p in plain.parameters()]
            norm = torch.stack([grad.norm() for grad in grads]).norm()
            torch.testing.assert_close(report.grad_norm, norm)
            for p, grad in zip(plain.parameters(), grads):
                p.grad = grad * min(1.0, 0.1 / (float(norm) + 1e-6)) if "clip" in plan else grad
            reference.step()
            reference.zero_grad()
        for ours, theirs in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(ours, theirs)
        print(kind.__name__, plan)
"""


def test_copies_of_any_kind_of_parameters_train_as_one_process_does(tmp_path: Path) -> None:
    for said in run_processes(KINDS, tmp_path):
        assert len(said.splitlines()) == 4, said


def test_copies_want_every_gradient_and_share_their_statistics(tmp_path: Path) -> None:
    first, second = run_processes(SCRIPT, tmp_path)
    for said in (first, second):
        assert "never: no gradient reaches these parameters: unused.weight, unused.bias; copies exchange" in said
        assert "once: parameters of the model got no gradient in the step before" in said
    assert [line for line in first.splitlines() if "=2" in line] == [
        line for line in second.splitlines() if "=2" in line
    ]
