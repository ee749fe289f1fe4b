"""Recipes that are killed go on from their checkpoints, at the step and with the data that they were at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.unit.job.processes import run_processes  # noqa: E402

pytestmark = pytest.mark.torch
from tests.unit.job.recipes.models import save_llama  # noqa: E402

pytestmark = pytest.mark.torch

# Every process is gone at the beginning of a step: no goodbye, nothing flushed. What was being saved is safe by then.
SCRIPT = """
import os, sys, torch
torch.set_num_threads(1)
from windlass.job.checkpoint.checkpoints import Checkpoints
from windlass.job.parallel.parallelize import Parallel
from windlass.job.recipes import RECIPE
step, steps, kept, enter = Parallel.step, 0, [], Checkpoints.__enter__
Checkpoints.__enter__ = lambda self: kept.append(self) or enter(self)
def counted(self, *args, **options):
    global steps
    steps += 1
    if steps == DIES_AT:
        kept[0].wait()
        os._exit(0)
    return step(self, *args, **options)
Parallel.step = counted
RECIPE.main()
sys.stdout.write(f"took {steps} steps\\n")
"""
STEPS = 12


def run(recipe: str, folder: Path, *, count: int, dies_at: int = 0) -> str:
    folder.mkdir(exist_ok=True)
    script = SCRIPT.replace("RECIPE", recipe).replace("DIES_AT", str(dies_at))
    return run_processes(script, folder, count=count)[0]


def went_on(
    recipe: str, params: dict[str, Any], plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """What an undisturbed run leaves, and what one leaves that was killed."""
    count = 2 if "=2" in plan else 1
    monkeypatch.setenv("WINDLASS_PARAMS", json.dumps(params))
    monkeypatch.setenv("WINDLASS_PLAN", plan)
    assert f"took {STEPS} steps" in run(recipe, tmp_path / "undisturbed", count=count)
    assert not (tmp_path / "undisturbed" / "output" / "checkpoints").exists(), "nobody asked for them"

    monkeypatch.setenv("WINDLASS_CHECKPOINT", '{"every": 4}')
    monkeypatch.setenv("WINDLASS_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    assert "took" not in run(recipe, tmp_path / "killed", count=count, dies_at=9)
    again = run(recipe, tmp_path / "killed", count=count)
    assert "going on from step 8" in again or "going on from step 4" in again  # a late save is left out
    assert f"took {STEPS - 8} steps" in again or f"took {STEPS - 4} steps" in again
    return tmp_path / "undisturbed" / "output", tmp_path / "killed" / "output"


def assert_equal(whole: dict[str, Any], resumed: dict[str, Any]) -> None:
    assert whole.keys() == resumed.keys()
    for name, weight in whole.items():
        assert torch.equal(weight, resumed[name]), name


@pytest.mark.parametrize("plan", ["", "shard=2", "tensor=2", "pipeline=2,accumulate=2"])
def test_a_killed_gpt_ends_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    params = {"steps": STEPS, "warmup": 3, "evaluate_every": 6, "evaluate_batches": 1, "batch": 4}
    whole, resumed = went_on("gpt", params, plan, tmp_path, monkeypatch)
    assert_equal(*(torch.load(folder / "model.pt")["weights"] for folder in (whole, resumed)))


def test_a_killed_classifier_ends_as_if_nothing_had_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, resumed = went_on("classifier", {"epochs": 3, "batch": 900, "width": 16}, "data=2", tmp_path, monkeypatch)
    assert_equal(*(torch.load(folder / "model.pt")["weights"] for folder in (whole, resumed)))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plan", ["data=2", "shard=2"])
def test_a_killed_lora_keeps_its_adapters_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    model = save_llama(tmp_path / "llama")
    (tmp_path / "data.txt").write_text("the anchor is up and the sails are set\n" * 20)
    params = {"model": str(model), "data": str(tmp_path / "data.txt"), "sequence": 32, "steps": STEPS, "dropout": 0.1}
    whole, resumed = went_on("lora", {**params, "batch": 4}, plan, tmp_path, monkeypatch)
    from safetensors.torch import load_file
    from torch.distributed.checkpoint import FileSystemReader

    assert_equal(*(load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (whole, resumed)))
    (newest,) = (tmp_path / "checkpoints").glob("step-*12")
    kept = FileSystemReader(newest).read_metadata().state_dict_metadata
    assert sum(name.startswith("model.") for name in kept) == 16
    assert all(".lora_" in name for name in kept if name.startswith("model.")), "the rest is in its folder already"


def test_what_has_done_all_its_steps_says_how_good_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"steps": 2, "layers": 1, "evaluate_batches": 1, "batch": 4}
    monkeypatch.setenv("WINDLASS_PARAMS", json.dumps(params))
    monkeypatch.setenv("WINDLASS_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    script = "import sys; from windlass.job.recipes import gpt; sys.stdout.write(f'unseen {gpt.main()}\\n')"
    told = [run_processes(script, tmp_path, count=1)[0].splitlines()[-1] for _ in range(2)]
    assert told[0].startswith("unseen ")
    assert float(told[1].split()[1]) == pytest.approx(float(told[0].split()[1]), abs=1e-6)
