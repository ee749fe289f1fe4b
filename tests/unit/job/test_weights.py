"""Weights in one piece, of a model that is divided in two ways at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.job.processes import run_processes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = """
import torch
from tests.unit.job.parallel.models import small_gpt
from windlass import job
from windlass.job.weights import whole_weights

model = small_gpt()
expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
weights = whole_weights(job.parallelize(model, "tensor=2,shard=2"))
if job.is_main:
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
print("whole")
"""


def test_weights_divided_twice_are_put_together_without_a_warning(tmp_path: Path) -> None:
    """PyTorch warns of sums in another order on each rank, and nothing is summed."""
    assert [said.split() for said in run_processes(SCRIPT, tmp_path, count=4)] == [["whole"]] * 4
