"""What our callbacks do in the loop of a framework, and what of a framework's checkpoints becomes the run's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.job.processes import run_processes
from windlass.agent.layout import progress
from windlass.agent.progress import read_progress
from windlass.core.manifest import SaveReason
from windlass.job.checkpoint.folder import check_hashes, list_saved
from windlass.job.integrations import registration as registering
from windlass.job.session import Session

SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import torch.distributed as dist
from windlass import job
from windlass.core.manifest import SaveReason
from windlass.job.integrations.loop import Loop
from windlass.job.integrations.registration import registration

if job.world_size > 1:
    dist.init_process_group("gloo")
loop = Loop()
loop.begin(3)
for step in range(4, 20):
    if step == 7 and job.rank == job.world_size - 1:
        os.kill(os.getpid(), signal.SIGTERM)
    if loop.stepped(step, 20):
        break
if job.is_main:
    Path(os.environ["WINDLASS_NODE_DIR"], "own.ckpt").write_bytes(b"state")
    registration().register(Path(os.environ["WINDLASS_NODE_DIR"], "own.ckpt"), step, {"loss": 1.0}, SaveReason.WARNED)
try:
    loop.leave()
except SystemExit as end:
    is_saved = os.path.exists(job.output_dir / f"checkpoints/adopted/step-{step:010}/manifest.json")
    restored = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    sys.stdout.write(json.dumps([step, end.code, is_saved, restored]) + "\\n")
if job.world_size > 1:
    dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize(("count", "step"), [(1, 7), (2, 8)])
def test_all_ranks_stop_at_the_same_step_when_it_is_saved(count: int, step: int, tmp_path: Path) -> None:
    said = [json.loads(output.splitlines()[-1]) for output in run_processes(SCRIPT, tmp_path, count=count)]
    assert said == [[step, 143, True, True]] * count
    (saved,) = list_saved(tmp_path / "output" / "checkpoints" / "adopted")
    assert (saved.manifest.reason, saved.manifest.metrics) == (SaveReason.WARNED, {"loss": 1.0})
    check_hashes(saved)
    for rank in range(count):
        told = read_progress(str(tmp_path / progress(rank)))
        assert (told.step, told.restored_step, told.steps) == (step, 3, step - 3)
        assert told.finished_at > 0
    points = [json.loads(line) for line in (tmp_path / "metrics-0.jsonl").read_text().splitlines()]
    told_of = [(one["s"], one["n"]) for one in points if "n" in one]
    assert (told_of[0], told_of[-1]) == ((4, 20), (step, 20))


def test_a_registration_is_closed_once_and_never_made_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registering, "session", lambda: mine)
    mine = Session({"WINDLASS_CHECKPOINT_DIR": str(tmp_path / "saved")})
    registering.close_registration()
    assert not (tmp_path / "saved").exists()
    assert registering.resume_path() is None
    first = registering.registration()
    (tmp_path / "a.ckpt").write_bytes(b"a")
    first.register(tmp_path / "a.ckpt", 5, {"loss": 2.0, "name": "x"})
    (tmp_path / "a.ckpt").unlink()
    first.settle()
    assert registering.resume_path() == str(tmp_path / "saved" / "adopted" / "step-0000000005" / "a.ckpt")
    for _ in range(2):
        registering.close_registration(wait_s=1.0)
    assert registering.registration() is not first
    registering.close_registration()
