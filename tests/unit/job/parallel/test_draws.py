"""Random numbers under a plan: who works on the same samples draws the same, also where nobody gave a seed."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.unit.job.parallel.models import Plain  # noqa: E402
from tests.unit.job.processes import run_processes  # noqa: E402
from windlass import job  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = """
import torch
from tests.unit.job.parallel.models import Residual
from windlass import job

process = job.init()
for plan in ("tensor=2", "pipeline=2,accumulate=2", "data=2"):
    torch.manual_seed(process.rank)
    job.parallelize(Residual(), plan)
    print(plan, torch.rand(3).tolist())
"""


def test_ranks_that_share_samples_draw_the_same_without_a_seed(tmp_path: Path) -> None:
    one, other = (said.splitlines() for said in run_processes(SCRIPT, tmp_path))
    assert one[:2] == other[:2]
    assert one[2] != other[2]  # each has samples of its own


def test_a_process_alone_draws_what_its_script_says() -> None:
    model = Plain()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    job.parallelize(model, "data")
    assert torch.equal(torch.rand(3), expected)
