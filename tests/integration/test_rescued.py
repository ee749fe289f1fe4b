"""An attempt that ends badly between two saves: what its ranks had in the node's memory is on the disk afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integration.local_runs import LocalRuns
from windlass.core.exits import ExitReason
from windlass.core.manifest import SaveReason
from windlass.engines.contract import StopKind
from windlass.job.checkpoint.folder import check_hashes, list_saved

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

TRAINING = """
import sys, time, torch
from windlass import job
job.init()
model = torch.nn.Linear(8, 8)
with job.checkpoints(model=model, folder={folder!r}, memory=1) as ckpt:
    for step in ckpt.steps(1_000_000):
        if step == 7:
            {end}
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path)
    yield runs
    runs.clean_up()


def test_the_step_before_a_failure_is_saved(runs: LocalRuns, tmp_path: Path) -> None:
    text = TRAINING.format(folder=str(tmp_path / "saved"), end="raise ValueError('bad batch')")
    seen = runs.run("python", runs.script("train.py", text))
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.EXIT_CODE
    (saved,) = list_saved(tmp_path / "saved")
    check_hashes(saved)
    assert (saved.step, saved.manifest.reason) == (7, SaveReason.RESCUED)


def test_so_is_the_last_one_of_ranks_that_had_to_be_killed(runs: LocalRuns, tmp_path: Path) -> None:
    end = "print('deaf', flush=True); time.sleep(600)"
    script = runs.script("train.py", TRAINING.format(folder=str(tmp_path / "saved"), end=end))
    attempt = runs.start("python", script, workers=2)
    for rank in (0, 1):
        runs.wait_for_text(attempt, "deaf", rank=rank)
    runs.engine.stop(attempt, grace_s=0.2, kind=StopKind.CANCELLED)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.CANCELLED
    (saved,) = list_saved(tmp_path / "saved")
    check_hashes(saved)
    assert (saved.step, saved.manifest.world_size) == (7, 2)
