"""What TensorBoard's writers log in a run's folder is among its metrics, through a real server and its supervisor."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import windlass
from tests import event_files
from windlass.testing import servers

WRITER = """
import os, sys, time
from pathlib import Path
import event_files
from windlass import job

def log(folder, step, value, tag="loss"):
    event_files.write(Path(folder), BEGAN, event_files.record(event_files.event(time.time(), step,
                      event_files.simple(tag, value))))

BEGAN = int(time.time())
attempt = int(os.environ["WINDLASS_ATTEMPT"])
"""
SPLITS = (
    WRITER
    + """
for step in range(300):
    log("logs/train", step, step)
    log("logs/validation", step, -step)
job.log(7, own=1.0)
"""
)
WAITS = (
    WRITER
    + """
log("runs/here", 1, 0.5)
while not os.path.exists("go"):
    time.sleep(0.02)
log("runs/here", 2, 0.25)
"""
)
FAILS_FIRST = (
    WRITER
    + """
for step in range(3):
    log("runs/attempt-%d" % attempt, 10 * attempt + step, step)
sys.exit(0 if attempt > 1 else 3)
"""
)
REAL = """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter()
for step in range(50):
    writer.add_scalar("loss", step, step)
    writer.add_scalar("new", step, step, new_style=True)
writer.add_scalars("both", {"a": 1.0, "b": 2.0}, 3)
writer.add_text("words", "no scalar", 1)
writer.close()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ServerProcess]:
    with servers.running_server(tmp_path_factory.mktemp("boards") / "home") as server:
        yield server


@pytest.fixture
def client(server: servers.ServerProcess) -> Iterator[windlass.Client]:
    with windlass.Client(url=server.url, token=server.token, home=server.home) as client:
        yield client


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    shutil.copy(event_files.__file__, folder / "event_files.py")
    scripts = {"splits": SPLITS, "waits": WAITS, "fails_first": FAILS_FIRST, "real": REAL}
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(text)
    old = int(time.time()) - 1_000
    event_files.write(
        folder / "runs/old", old, event_files.record(event_files.event(1.0, 1, event_files.simple("x", 1)))
    )
    return folder


def test_scalars_of_several_writers_are_metrics_of_the_run(client: windlass.Client, code: Path) -> None:
    run = client.submit(script="splits.py", code=code).wait(timeout=60)
    found = run.metrics()
    assert set(found) == {"train/loss", "validation/loss", "own"}  # and nothing of what came with the code
    assert found["train/loss"].steps == tuple(range(300))
    assert found["validation/loss"].values == tuple(-float(step) for step in range(300))


def test_they_are_seen_while_the_run_goes_on(client: windlass.Client, code: Path) -> None:
    run = client.submit(script="waits.py", code=code)
    deadline = time.monotonic() + 60
    while "loss" not in run.metrics():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (client.home / "runs" / run.id / "work" / "go").touch()
    assert run.wait(timeout=60).state == "succeeded"
    assert run.metrics()["loss"].values == (0.5, 0.25)


def test_each_is_there_once_after_another_attempt(client: windlass.Client, code: Path) -> None:
    retry = {"max": 1, "backoff": "0s"}
    run = client.submit({"script": "fails_first.py", "code": str(code), "retry": retry}).wait(timeout=60)
    assert (run.state, len(run.attempts())) == ("succeeded", 2)
    loss = run.metrics()["loss"]
    assert loss.steps == (10, 11, 12, 20, 21, 22)
    assert set(run.metrics()) == {"loss"}


def test_a_spec_can_do_without(client: windlass.Client, code: Path) -> None:
    run = client.submit({"script": "splits.py", "code": str(code), "tensorboard": False}).wait(timeout=60)
    assert set(run.metrics()) == {"own"}
    only = client.submit({"script": "splits.py", "code": str(code), "tensorboard": "logs/train"}).wait(timeout=60)
    assert set(only.metrics()) == {"train/loss", "own"}


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_the_writer_of_pytorch(client: windlass.Client, code: Path) -> None:
    run = client.submit(script="real.py", code=code).wait(timeout=120)
    found = run.metrics()
    assert set(found) == {"loss", "new", "both_a/both", "both_b/both"}
    assert found["loss"].values == found["new"].values == tuple(float(step) for step in range(50))
