"""Every framework's own way of finding its processes: two of them under Windlass end where one does."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import skip_unless_ci
from tests.e2e.sites import Installation, LocalSite

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(300), pytest.mark.xdist_group("frameworks")]

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
# TensorFlow pins versions of what others need newer: it has an environment of its own.
TENSORFLOW = Path(f"{sys.prefix}-tensorflow") / "bin" / "python"
SAID = re.compile(r"process (\d+) of (\d+): loss ([\d.]+)")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("frameworks"), LocalSite())
    yield installation
    installation.close()


def interpreter_with(framework: str) -> str:
    there = TENSORFLOW.exists() if framework == "tensorflow" else importlib.util.find_spec(framework) is not None
    if not there:
        skip_unless_ci(framework, ModuleNotFoundError("`make frameworks` installs it"))
    return str(TENSORFLOW) if framework == "tensorflow" else sys.executable


def losses(installation: Installation, *command: str, processes: int) -> list[float]:
    """By rank, as the processes print them."""
    state, text = run(installation, *command, processes=processes)
    assert state == "succeeded", text
    said = sorted((int(rank), int(world), float(loss)) for rank, world, loss in SAID.findall(text))
    assert [(rank, world) for rank, world, _ in said] == [(rank, processes) for rank in range(processes)], text
    return [loss for _, _, loss in said]


def run(installation: Installation, *command: str, processes: int) -> tuple[str, str]:
    """Its state at the end, and what it has printed."""
    with installation.client() as client:
        run = client.submit(
            command=list(command),
            code=EXAMPLES,
            nproc=processes,
            resources={"cpus": 1},
            env={"JAX_PLATFORMS": "cpu"},
            retry={"max": 0},
        ).wait(timeout=250)
        return run.state, "\n".join(line.text for line in run.logs())


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "xgboost", "lightning", "accelerate", "transformers"])
def test_two_processes_end_where_one_does(installation: Installation, framework: str) -> None:
    python, script = interpreter_with(framework), f"{framework}_train.py"
    [alone] = losses(installation, python, script, processes=1)
    assert losses(installation, python, script, processes=2) == pytest.approx([alone, alone], rel=1e-3)


def test_a_launcher_in_the_command_finds_its_size_by_itself(installation: Installation) -> None:
    python, script = interpreter_with("accelerate"), "accelerate_train.py"
    [alone] = losses(installation, python, script, processes=1)
    command = (python, "-m", "torch.distributed.run", script)
    for _ in range(5):
        state, text = run(installation, *command, processes=2)
        # Processes that Windlass begins wait for the threads of gloo at their end, those of a launcher do not: torch
        # aborts some of them after their work is done (windlass/agent/quiet.py).
        if state == "succeeded" or "terminate called without an active exception" not in text:
            break
    assert state == "succeeded", text
    assert sorted(float(loss) for *_, loss in SAID.findall(text)) == pytest.approx([alone, alone], rel=1e-3)
    assert {(rank, world) for rank, world, _ in SAID.findall(text)} == {("0", "2"), ("1", "2")}
