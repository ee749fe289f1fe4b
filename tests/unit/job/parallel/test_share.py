"""Parts of a batch that are not equal: the step is that of the whole batch all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.job.processes import run_processes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = """
import copy, torch
from torch.nn.functional import cross_entropy
from tests.unit.job.parallel.models import Plain
from windlass import job

process = job.init()
torch.manual_seed(0)
inputs, targets = torch.randn(40, 4), torch.randint(3, (40,))
torch.manual_seed(1)
whole = Plain()
parallel = job.parallelize(copy.deepcopy(whole), loss=cross_entropy)
order = job.order(40, 8, seed=3)
batches = job.loader(((inputs[ids], targets[ids]) for ids in order), order=order)
one, other = torch.optim.SGD(whole.parameters(), 0.5), job.optimizer(parallel, torch.optim.SGD, lr=0.5)
for number, (x, y) in zip(range(4), batches):
    ids = order.ids_at(8 * number, 8)
    expected = cross_entropy(whole(inputs[ids]), targets[ids])
    expected.backward()
    found = parallel.step(x, y, share=order.share)
    torch.testing.assert_close(found, expected.detach())
    for optimizer in (one, other):
        optimizer.step()
        optimizer.zero_grad()
for mine, theirs in zip(parallel.parameters(), whole.parameters(), strict=True):
    torch.testing.assert_close(mine, theirs)
parallel = job.parallelize(copy.deepcopy(whole), loss=cross_entropy)
try:
    parallel.step(x, y, share=1 / 3)
except Exception as error:
    print(len(x), type(error).__name__, error)
"""


def test_three_processes_share_eight_samples(tmp_path: Path) -> None:
    said = run_processes(SCRIPT, tmp_path, count=3)
    assert [words.split()[0] for words in said] == ["3", "3", "2"]
    assert all("RanksDisagree the parts of the batch do not make a whole" in words for words in said), said
