"""The samples that an elastic run trains on, while nodes go and come, are those of a run that nothing happened to."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")

from windlass.agent import layout
from windlass.agent.files import read_json
from windlass.client import Client, Run
from windlass.core.clock import SystemClock
from windlass.core.resources import Node
from windlass.db.database import sqlite_url
from windlass.engines.local import LocalEngine
from windlass.job.ordering import Order
from windlass.server import homefolder
from windlass.server.compose import compose
from windlass.server.settings import Settings
from windlass.testing.servers import end_processes_of, serving

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(600)]

PATIENCE_S = 150.0
SIZE, BATCH, SEED = 997, 10, 5  # ten samples over four, three and two processes: parts are not all equal
# Goes on until it is told, well in advance, after which step to stop. What was trained on is written down after the
# step, by every rank.
TRAINING = f"""
import os, time, torch
from torch.utils.data import DataLoader
from windlass import job

class Numbers:
    def __len__(self): return {SIZE}
    def __getitem__(self, number): return number, torch.tensor([number / {SIZE}, 1.0]), torch.tensor([(number % 7) / 7])

def end():
    try: return int(open(f"{{FOLDER}}/end").read())
    except (FileNotFoundError, ValueError): return 10**9

FOLDER = os.environ["TOLD"]
job.init()
torch.manual_seed(0)
parallel = job.parallelize(torch.nn.Linear(2, 1), loss=torch.nn.functional.mse_loss)
optimizer = job.optimizer(parallel, torch.optim.SGD, lr=0.1)
order = job.order({SIZE}, {BATCH}, {SEED}, parallel=parallel, trace=True)
batches = job.loader(DataLoader(Numbers(), batch_sampler=order), prefetch=3)
with (
    job.checkpoints(model=parallel, optimizer=optimizer, loader=batches, every=7) as ckpt,
    open(f"{{FOLDER}}/attempt-{{job.attempt}}-rank-{{job.rank}}-{{os.getpid()}}", "w", buffering=1) as told,
):
    for step, (ids, inputs, targets) in zip(ckpt.steps(10**9), batches):
        loss = parallel.step(inputs, targets, share=order.share)
        optimizer.step()
        optimizer.zero_grad()
        print(step, *ids.tolist(), file=told)
        time.sleep(0.02)
        if step + 1 >= end():
            break
    if job.is_main:
        weights = [value for part in parallel.parameters() for value in part.detach().flatten().tolist()]
        print("ended", step + 1, order.trace, *weights)
"""


class FickleEngine(LocalEngine):
    """A machine that is divided into nodes, some of which are gone at times."""

    gone: frozenset[str] = frozenset()

    def inventory(self) -> Sequence[Node]:
        return [node for node in super().inventory() if node.name not in self.gone]


@contextmanager
def running(home: Path) -> Iterator[tuple[FickleEngine, Client]]:
    homefolder.prepare(home)
    opened: list[FickleEngine] = []

    def open_engines(nudge: Callable[[], None]) -> dict[str, FickleEngine]:
        opened.append(FickleEngine(home, home / "blobs", notify=nudge, clock=SystemClock(), nodes=4))
        return {"local": opened[0]}

    parts = compose(Settings(home=home, database_url=sqlite_url(home / "windlass.db")), open_engines=open_engines)
    controller = parts.controller
    assert controller is not None
    assert controller.activate()
    thread = threading.Thread(target=controller.run_forever, name="controller")
    thread.start()
    try:
        with (
            serving(parts) as http,
            Client(url=str(http.base_url), token=parts.services.token or "", home=home) as client,
        ):
            yield opened[0], client
    finally:
        controller.stop()
        thread.join()
        end_processes_of(home)
        parts.db.close()


def test_nodes_go_and_come_and_no_sample_is_missed_or_repeated(tmp_path: Path) -> None:
    home, told, code = tmp_path / "home", tmp_path / "told", tmp_path / "code"
    told.mkdir()
    code.mkdir()
    (code / "train.py").write_text(TRAINING)
    with running(home) as (engine, client):
        run = client.submit(
            name="elastic",
            script="train.py",
            code=code,
            elastic={"min_nodes": 1, "max_nodes": 4, "grow_every": 1},
            grace="2m",
            retry={"max": 5, "backoff": 0.1},
            env={"TOLD": str(told), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        steps_by(run, told, attempt=1, nodes=4)
        take_away(engine, run, told, "local-3")
        steps_by(run, told, attempt=2, nodes=3)
        take_away(engine, run, told, "local-1")
        steps_by(run, told, attempt=3, nodes=2)
        engine.gone = frozenset()
        last = steps_by(run, told, attempt=4, nodes=4)
        (told / "end.new").write_text(str(last + 100))
        (told / "end.new").rename(told / "end")
        run.wait(timeout=PATIENCE_S)
        ended = next(line.text.split() for line in run.logs() if line.text.startswith("ended"))
        assert run.state == "succeeded", run.view.exit
        exits = [attempt.exit.reason if attempt.exit else None for attempt in run.attempts()]
        messages = [event.message for event in run.events()]
    steps = int(ended[1])
    assert exits == ["lost", "lost", "preempted", "completed"]
    assert any(message.startswith("it grows from 2 to 4 nodes") for message in messages), messages
    order = Order(SIZE, BATCH, SEED, True, None, reader=0, readers=1, trace=True)
    undisturbed = [order.ids_at(BATCH * step, BATCH) for step in range(steps)]
    assert sequence(told) == undisturbed
    assert digest(sequence(told)) == digest(undisturbed)
    order.advance(steps)
    assert ended[2] == order.trace  # what the run itself says
    assert [float(weight) for weight in ended[3:]] == pytest.approx(trained(undisturbed), abs=1e-4)


def steps_by(run: Run, told: Path, *, attempt: int, nodes: int) -> int:
    """Wait until the attempt has made some steps on so many nodes; the last of them."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = [[int(line.split()[0]) for line in lines_of(path)] for path in told.glob(f"attempt-{attempt}-rank-*")]
        if len(found) >= nodes and min(map(len, found)) > 20:
            break
        states = [(one.number, one.state, one.nodes, one.exit) for one in run.attempts()]
        assert run.refresh().state not in ("failed", "succeeded"), states
        assert time.monotonic() < deadline, states
        time.sleep(0.05)
    assert len(run.attempts()[attempt - 1].nodes) == nodes
    return max(steps[-1] for steps in found)


def take_away(engine: FickleEngine, run: Run, told: Path, name: str) -> None:
    """The node is gone, with all that was on it, without a word; a checkpoint was there before."""
    engine.gone |= {name}
    attempt = run.attempts()[-1]
    status = read_json(os.path.join(attempt.log_dirs[attempt.nodes.index(name)], layout.STATUS))
    assert status is not None
    os.kill(status["pid"], signal.SIGKILL)


def lines_of(path: Path) -> list[str]:
    """Those that are whole: the process may have been killed while it wrote."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def sequence(told: Path) -> list[list[int]]:
    """The samples of every step, in the order of the ranks. What was lost with an attempt and trained on again by a
    later one counts once: that is the training which the weights come from."""
    steps: dict[int, tuple[int, dict[int, list[int]]]] = {}
    for path in told.glob("attempt-*"):
        _, attempt, _, rank, _ = path.name.split("-")
        for line in lines_of(path):
            step, *ids = map(int, line.split())
            newest, parts = steps.get(step, (0, {}))
            if int(attempt) > newest:
                newest, parts = int(attempt), {}
            if int(attempt) == newest:
                parts[int(rank)] = ids
            steps[step] = newest, parts
    assert sorted(steps) == list(range(len(steps)))
    return [[sample for _, ids in sorted(steps[step][1].items()) for sample in ids] for step in range(len(steps))]


def digest(steps: Sequence[Sequence[int]]) -> str:
    return hashlib.sha256("\n".join(" ".join(map(str, ids)) for ids in steps).encode()).hexdigest()


def trained(steps: Sequence[Sequence[int]]) -> list[float]:
    """The weights that one process gets from the same steps."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids in steps:
        inputs = torch.tensor([[number / SIZE, 1.0] for number in ids])
        targets = torch.tensor([[(number % 7) / 7] for number in ids])
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [value for part in model.parameters() for value in part.detach().flatten().tolist()]
