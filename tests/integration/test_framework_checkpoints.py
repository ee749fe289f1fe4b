"""Lightning and Transformers save by themselves, and what they saved is the run's, here and in its store."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import skip_unless_ci
from windlass.agent.layout import progress
from windlass.agent.progress import read_progress
from windlass.core.manifest import SaveReason
from windlass.job.checkpoint.folder import check_hashes, list_saved

pytest.importorskip("torch")
pytest.importorskip("obstore")
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("frameworks")]

LIGHTNING = """
import os, signal, sys, torch, lightning
from torch.utils.data import DataLoader, TensorDataset
from windlass.job.integrations.lightning import RunCallback, resume_path

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch):
        if self.trainer.global_step + 1 == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGTERM)
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8)
saving = lightning.pytorch.callbacks.ModelCheckpoint(dirpath="out", every_n_train_steps=2, save_top_k=1, monitor="step",
    mode="max", filename="{step}")
found = resume_path()
trainer = lightning.Trainer(max_steps=int(sys.argv[1]), callbacks=[RunCallback(), saving], logger=False,
    enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", devices=1)
model = Model()
trainer.fit(model, data, ckpt_path=found, weights_only=False)
print("from", found, "at", trainer.global_step)
"""
TRANSFORMERS = """
import os, signal, sys, torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from windlass.job.integrations.transformers import RunCallback, resume_path

class Model(PreTrainedModel):
    config_class = PretrainedConfig
    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(4, 1)
        self.post_init()
    def forward(self, x, labels=None):
        if trainer.state.global_step + 1 == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGTERM)
        return {"loss": self.layer(x).square().mean()}

data = [{"x": torch.randn(4), "labels": torch.zeros(1)} for _ in range(32)]
args = TrainingArguments(output_dir="out", max_steps=int(sys.argv[1]), save_steps=2, save_total_limit=1, report_to=[],
    use_cpu=True, disable_tqdm=True, per_device_train_batch_size=8)
found = resume_path()
trainer = Trainer(model=Model(PretrainedConfig()), args=args, train_dataset=data, callbacks=[RunCallback()])
trainer.train(resume_from_checkpoint=found)
print("from", found, "at", trainer.state.global_step)
"""


def run(script: str, steps: int, folder: Path, *, warned_in: int = 0) -> str:
    wanted: dict[str, Any] = {"keep": 2, "store": f"file://{folder}/store"}
    environ = {
        "WINDLASS_CHECKPOINT": json.dumps(wanted),
        "WINDLASS_CHECKPOINT_DIR": str(folder / "saved"),
        "WINDLASS_NODE_DIR": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", script, str(steps), str(warned_in)],
        cwd=folder,
        env={**os.environ, **environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == (143 if warned_in else 0), done.stderr[-3_000:]
    return done.stdout


BOTH = pytest.mark.parametrize(("name", "script"), [("lightning", LIGHTNING), ("transformers", TRANSFORMERS)])


def need(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        skip_unless_ci(name, ModuleNotFoundError("`make frameworks` installs it"))


@BOTH
def test_what_it_saved_is_registered_and_gone_on_from(name: str, script: str, tmp_path: Path) -> None:
    need(name)
    assert "from None at 4" in run(script, 4, tmp_path)
    found = list_saved(tmp_path / "saved" / "adopted")
    assert [saved.manifest.step for saved in found] == [4, 2]
    check_hashes(found[0])
    shutil.rmtree(tmp_path / "saved")
    shutil.rmtree(tmp_path / "out")  # another machine: only the store is there
    said = run(script, 6, tmp_path)
    assert f"from {tmp_path}/saved/adopted/step-0000000004" in said
    assert "at 6" in said
    assert list_saved(tmp_path / "saved" / "adopted")[0].manifest.step == 6


@BOTH
def test_a_run_that_is_told_to_stop_goes_on_from_that_very_step(name: str, script: str, tmp_path: Path) -> None:
    need(name)
    run(script, 9, tmp_path, warned_in=5)
    newest = list_saved(tmp_path / "saved" / "adopted")[0]
    assert (newest.manifest.step, newest.manifest.reason) == (5, SaveReason.WARNED)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["adopted"]
    told = read_progress(str(tmp_path / progress(0)))
    assert (told.step, told.steps) == (5, 5)
    said = run(script, 9, tmp_path)
    assert f"from {newest.path}" in said
    assert "at 9" in said
    told = read_progress(str(tmp_path / progress(0)))
    assert (told.step, told.restored_step, told.steps) == (9, 5, 4)  # none is done twice
    points = [json.loads(line) for line in (tmp_path / "metrics-0.jsonl").read_text().splitlines()]
    assert {(1, 9), (5, 9), (6, 9), (9, 9)} <= {(one["s"], one["n"]) for one in points if "n" in one}


CHOOSING = """
from types import SimpleNamespace
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from windlass.job.integrations.lightning import RunCallback, RunCheckpointIO

class Mine(RunCheckpointIO): pass
class Other(TorchCheckpointIO): pass

for io in (TorchCheckpointIO(), Mine(), Other()):
    trainer = SimpleNamespace(strategy=SimpleNamespace(checkpoint_io=io))
    try:
        RunCallback().setup(trainer, None, "fit")
        print(type(trainer.strategy.checkpoint_io).__name__)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_lightnings_callback_brings_its_plugin_and_takes_nobodys_place(tmp_path: Path) -> None:
    need("lightning")
    assert run(CHOOSING, 0, tmp_path).splitlines() == [
        "RunCheckpointIO",
        "Mine",
        "InvalidInput RunCallback takes what Lightning's TorchCheckpointIO writes, and here Other does",
    ]
