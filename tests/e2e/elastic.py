"""A training that writes down which samples it has used, for tests in which nodes go and come, and what to compare."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from windlass.client import Client, Run
from windlass.job.ordering import Order

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


class Training:
    """A run of it, and the folder in which its ranks tell what they did."""

    def __init__(self, client: Client, folder: Path, *, max_nodes: int, nproc: int = 1, **keys: Any) -> None:
        self._nproc = nproc
        self.told = folder / "told"
        code = folder / "code"
        for one in (self.told, code):
            one.mkdir()
        (code / "train.py").write_text(TRAINING)
        self.run: Run = client.submit(
            name="elastic",
            script="train.py",
            code=code,
            nproc=nproc,
            elastic={"min_nodes": 1, "max_nodes": max_nodes, "grow_every": 1},
            grace="2m",
            retry={"max": 5, "backoff": 0.1},
            env={"TOLD": str(self.told), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            **keys,
        )

    def wait_for_steps(self, *, nodes: int) -> int:
        """Until an attempt on so many nodes, the newest, has made some steps; the last of them."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            attempts = self.run.attempts()
            states = [(one.number, one.state, one.nodes, one.detail, one.exit) for one in attempts]
            if attempts and len(attempts[-1].nodes) == nodes:
                told = self.told.glob(f"attempt-{attempts[-1].number}-rank-*")
                steps = [[int(line.split()[0]) for line in whole_lines(path)] for path in told]
                if len(steps) >= nodes * self._nproc and min(map(len, steps)) > 20:
                    return max(made[-1] for made in steps)
            assert self.run.refresh().state not in ("failed", "succeeded"), states
            assert time.monotonic() < deadline, states
            time.sleep(0.05)

    def end_after(self, step: int) -> list[str]:
        """What it says at its end."""
        (self.told / "end.new").write_text(str(step))
        (self.told / "end.new").rename(self.told / "end")
        self.run.wait(timeout=PATIENCE_S)
        assert self.run.state == "succeeded", self.run.view.exit
        return next(line.text.split() for line in self.run.logs() if line.text.startswith("ended"))

    def check(self, ended: Sequence[str]) -> None:
        """That its samples and weights are those of a run that nothing happened to."""
        steps = int(ended[1])
        order = Order(SIZE, BATCH, SEED, True, None, reader=0, readers=1, trace=True)
        undisturbed = [order.ids_at(BATCH * step, BATCH) for step in range(steps)]
        assert digest(self.sequence()) == digest(undisturbed)
        order.advance(steps)
        assert ended[2] == order.trace  # what the run itself says
        assert [float(weight) for weight in ended[3:]] == pytest.approx(trained(undisturbed), abs=1e-4)

    def sequence(self) -> list[list[int]]:
        """The samples of every step, in the order of the ranks. What was lost with an attempt and trained on again by
        a later one counts once: that is the training which the weights come from."""
        steps: dict[int, tuple[int, dict[int, list[int]]]] = {}
        for path in self.told.glob("attempt-*"):
            _, attempt, _, rank, _ = path.name.split("-")
            for line in whole_lines(path):
                step, *ids = map(int, line.split())
                newest, parts = steps.get(step, (0, {}))
                if int(attempt) > newest:
                    newest, parts = int(attempt), {}
                if int(attempt) == newest:
                    parts[int(rank)] = ids
                steps[step] = newest, parts
        assert sorted(steps) == list(range(len(steps)))
        return [[sample for _, ids in sorted(steps[step][1].items()) for sample in ids] for step in range(len(steps))]


def whole_lines(path: Path) -> list[str]:
    """The process may have been killed while it wrote."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


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
