"""A run of a higher priority comes, and the only node is taken: what runs there is warned, stopped, and goes on by
itself when there is room again. What it had saved is not lost, and its losses are those of a run left alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.e2e.sites import Installation, LocalSite
from tests.integration.away import await_that
from windlass.client import Client, Run

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(400)]

PATIENCE_S = 150.0
STEPS, EVERY = 2000, 50
# Takes its time until it is told to hurry, so that whoever disturbs it has some too.
TRAINING = f"""
import os, time, torch
from torch.utils.data import DataLoader, TensorDataset
from windlass import job

HURRY = os.environ["TOLD"] + "/hurry"

job.init()
torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)
inputs = torch.randn(480, 8, generator=draw)
data = TensorDataset(inputs, inputs.square().sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = job.loader(DataLoader(data, batch_sampler=job.order(len(data), 24)))
with job.checkpoints(model=model, optimizer=optimizer, loader=batches, every={EVERY}) as ckpt:
    print("from step", ckpt.first_step, flush=True)
    for step, (x, y) in zip(ckpt.steps({STEPS}), batches):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not os.path.exists(HURRY):
            time.sleep(0.05)
    print("final loss", loss.item().hex(), flush=True)
"""
# Says how often it has begun, and goes on until it is told to end.
PLAIN = """
import os, signal, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("from the beginning", flush=True)
while not os.path.exists(os.environ["TOLD"] + "/end"):
    time.sleep(0.05)
"""


class Machine:
    """A server with one node, on which each run takes all there is."""

    def __init__(self, folder: Path) -> None:
        self.told, self._code = folder / "told", folder / "code"
        for made in (self.told, self._code):
            made.mkdir()
        (self._code / "train.py").write_text(TRAINING)
        (self._code / "plain.py").write_text(PLAIN)
        self.installation = Installation(folder, OneNode(), config={"scheduling": {"min_run": "0s"}})
        self.client: Client = self.installation.client()
        self._await(lambda: bool(self.client.cluster().nodes), str)
        self._cpus = self.client.cluster().nodes[0].cpus

    def submit(self, name: str, script: str, priority: str, **keys: Any) -> Run:
        return self.client.submit(
            name=name,
            script=script,
            code=self._code,
            resources={"cpus": self._cpus},
            priority=priority,
            seed=1,
            env={"TOLD": str(self.told), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            **keys,
        )

    def tell(self, word: str) -> None:
        (self.told / word).touch()

    def await_state(self, run: Run, state: str) -> None:
        self._await(lambda: run.refresh().state == state, lambda: history(run))

    def await_line(self, run: Run, text: str) -> None:
        self._await(lambda: any(text in line.text for line in run.logs()), lambda: history(run))

    def await_save(self, run: Run) -> None:
        self._await(lambda: bool(run.checkpoints().checkpoints), lambda: history(run))

    def close(self) -> None:
        self.client.close()
        self.installation.close()

    @staticmethod
    def _await(condition: Callable[[], bool], history: Callable[[], str]) -> None:
        await_that(condition, history, timeout_s=PATIENCE_S)


class OneNode(LocalSite):
    def engine(self, folder: Path) -> dict[str, Any]:
        return {**super().engine(folder), "nodes": 1}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def history(run: Run) -> str:
    events = [f"{event.at:.1f} {event.kind}: {event.message}" for event in run.events()]
    return "\n".join([*events, *(line.text for line in list(run.logs())[-60:])])


def finished(run: Run) -> str:
    """The last line of one that succeeds."""
    run.wait(timeout=PATIENCE_S)
    assert run.state == "succeeded", history(run)
    return run.logs()[-1].text


def check_story(low: Run, high: Run) -> None:
    """It was stopped once, for this run, and both its events and its attempts say so."""
    [told] = [event for event in low.events() if event.kind == "preempting"]
    assert told.attempt == 1
    assert f"room for run {high.id}" in told.message
    assert "higher priority" in told.message
    assert [attempt.exit.reason for attempt in low.attempts() if attempt.exit] == ["preempted", "completed"]
    assert low.refresh().view.preemptions == 1
    moments = [attempt.started_at for attempt in (*low.attempts(), *high.attempts())]
    first, second, between = (moment or 0.0 for moment in moments)
    assert first < between < second


def stopped(run: Run) -> str:
    """What it says once it waits."""
    [event] = [event for event in run.events() if event.kind == "retrying"]
    return event.message


def test_a_training_run_saves_when_it_is_warned_and_ends_with_the_loss_of_one_left_alone(machine: Machine) -> None:
    low = machine.submit("training", "train.py", "low", grace="1m")
    machine.await_save(low)
    high = machine.submit("urgent", "plain.py", "high")
    machine.await_line(high, "from the beginning")
    machine.await_state(low, "recovering")

    why = low.why()
    reason = f"it makes room for run {high.id}, which has a higher priority"
    assert stopped(low) == f"stopped for now: {reason}"
    assert f"attempt 1 ended: preempted: {reason}" in "\n".join(why.details)
    found = low.checkpoints().checkpoints
    warned = found[0]
    assert warned.reason == "warned", [(each.step, each.reason) for each in found]
    assert all(each.reason == "interval" and each.step < warned.step for each in found[1:])

    machine.tell("hurry")
    machine.tell("end")
    assert finished(high) == "from the beginning"
    loss = finished(low)
    begun = [line.text for line in low.logs() if line.text.startswith("from step")]
    assert begun == ["from step 0", f"from step {warned.step}"]
    check_story(low, high)
    undisturbed = machine.submit("undisturbed", "train.py", "normal")
    assert loss == finished(undisturbed)
    assert loss.startswith("final loss")


@pytest.mark.parametrize(
    ("words", "grace"),
    [pytest.param([], "1m", id="without checkpoints"), pytest.param(["deaf"], "1s", id="that ignores the warning")],
)
def test_one_that_saves_nothing_starts_again(machine: Machine, words: list[str], grace: str) -> None:
    low = machine.submit("plain", "plain.py", "low", args=words, grace=grace)
    machine.await_line(low, "from the beginning")
    high = machine.submit("urgent", "plain.py", "high")
    machine.await_line(high, "from the beginning")
    machine.await_state(low, "recovering")
    assert "starts from the beginning" in stopped(low)
    machine.tell("end")
    assert finished(high) == "from the beginning"
    finished(low)
    assert [line.text for line in low.logs()] == 2 * ["from the beginning"]
    check_story(low, high)
