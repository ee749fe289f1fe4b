"""What only several processes have: communication that takes time, and stopping together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.job.processes import run_processes

pytestmark = pytest.mark.torch

SCRIPT = """
import json, sys
import torch, torch.distributed as dist
from torch import nn
from windlass import job
from windlass.job.accounting.anomaly import SickStep
from windlass.job.accounting.communication import Sampler

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))))
inputs = torch.randn(32, 256)

sampler = Sampler(torch.device("cpu"), first_after_s=0)
for step in range(1, 15):
    model(inputs).sum().backward()
    sampler.step_ended(step)
found = {"communication": sampler.shares.communication, "overlapped": sampler.shares.overlapped,
         "cost_s": sampler.cost_s, "next_in_s": sampler._next_at - sampler._last_end}

steps = job.steps(model, on_nan="stop", every=1, total=20)
try:
    for step in range(1, 21):
        loss = model(inputs).square().mean()
        if step == 6 and job.rank == 1:
            loss = loss * float("nan")
        steps.done(loss)
except SickStep as error:
    found["stopped"] = str(error)
sys.stdout.write(json.dumps(found) + "\\n")
dist.destroy_process_group()
"""


def test_communication_is_measured_and_a_sick_step_stops_all(tmp_path: Path) -> None:
    said = [json.loads(output.splitlines()[-1]) for output in run_processes(SCRIPT, tmp_path)]
    for found in said:
        assert 0 < found["communication"] <= 1
        assert 0 <= found["overlapped"] <= 1
        # The dearer a measured step, the longer until the next: two hundred times its cost and more.
        assert found["next_in_s"] == pytest.approx(found["cost_s"] / 0.004, rel=0.2, abs=0.2)
        assert found["stopped"] == "step 6: the loss is nan"
    logged = [json.loads(line) for line in (tmp_path / "metrics-0.jsonl").read_text().splitlines()]
    points = [point for point in logged if "m" in point]
    assert [point["s"] for point in points] == [1, 2, 3, 4, 5, 6]
    # One process speaks for all, but for the alert: it may be ended before it comes to that.
    told = [json.loads(line) for line in (tmp_path / "metrics-1.jsonl").read_text().splitlines()]
    alert = {"kind": "nan", "message": "step 6: the loss is nan", "once": True}
    assert [line["a"] for line in logged if "a" in line] == [line["a"] for line in told] == [alert]
