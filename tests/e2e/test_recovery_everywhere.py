"""Four ranks on two nodes; a rank is killed, then a node: the run goes on by itself on every engine, and ends with the
very loss of one that nothing happened to. (`test_elastic.py`: with the nodes that are left.)
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.e2e.sites import Installation, LocalSite, Site
from tests.integration.away import await_that
from windlass.client import Client, Run
from windlass.core.manifest import MANIFEST

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(400)]

PATIENCE_S = 150.0
STEPS = 60
# Waits at its gates until it is let on, so that whoever disturbs it has the time. Every rank says what it does.
TRAINING = f"""
import os, time, torch
from torch.utils.data import DataLoader, TensorDataset
from windlass import job

FOLDER = os.environ["TOLD"]

def wait_at(gate):
    while not os.path.exists(f"{{FOLDER}}/open-{{gate}}"):
        time.sleep(0.02)

job.init()
torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)
inputs = torch.randn(480, 8, generator=draw)
data = TensorDataset(inputs, inputs.square().sum(1, keepdim=True))
parallel = job.parallelize(
    torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)), loss=torch.nn.MSELoss()
)
optimizer = job.optimizer(parallel, torch.optim.AdamW, lr=1e-2)
order = job.order(len(data), 24, parallel=parallel)
batches = job.loader(DataLoader(data, batch_sampler=order))
with (
    job.checkpoints(model=parallel, optimizer=optimizer, loader=batches, every=5) as ckpt,
    open(f"{{FOLDER}}/{{job.attempt}}-{{job.rank}}-{{os.getpid()}}", "w", buffering=1) as told,
):
    print("from", ckpt.first_step, file=told)
    for step, (x, y) in zip(ckpt.steps({STEPS}), batches):
        for gate in (20, 40):
            if step == gate:
                wait_at(gate)
        loss = parallel.step(x, y, share=order.share)
        optimizer.step()
        optimizer.zero_grad()
        print(step, file=told)
        job.log(step + 1, loss=loss)
    if job.is_main:
        print("final loss", loss.item().hex())
"""


@pytest.fixture(scope="session")
def undisturbed_loss(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed")
    installation = Installation(folder, LocalSite())
    try:
        with installation.client() as client:
            training = Training(client, folder)
            training.open(20)
            training.open(40)
            return training.final_loss()
    finally:
        installation.close()


class Training:
    """The run, and what its ranks have written down."""

    def __init__(self, client: Client, folder: Path, **keys: Any) -> None:
        self._told, self._saves, code = folder / "told", folder / "saves", folder / "code"
        for made in (self._told, self._saves, code):
            made.mkdir()
        (code / "train.py").write_text(TRAINING)
        self.run: Run = client.submit(
            name="steady",
            script="train.py",
            code=code,
            nproc=2,
            resources={"nodes": 2, "cpus": 1},
            checkpoint={"folder": str(self._saves)},
            seed=1,
            retry={"max": 5, "backoff": 0.1},
            grace="1m",
            # Nodes set up like this machine: the same interpreter, wherever they look for it.
            env={"TOLD": str(self._told), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            **keys,
        )

    def open(self, gate: int) -> None:
        (self._told / f"open-{gate}").touch()

    def ranks_at(self, step: int, *, world_size: int) -> dict[int, int]:
        """The pids of the newest processes, once all of them have done this step."""
        done: dict[int, int] = {}

        def all_there() -> bool:
            done.clear()
            for path in self._told.glob("*-*-*"):
                _, rank, pid = map(int, path.name.split("-"))
                if f"{step}\n" in path.read_text().splitlines(keepends=True) and os.path.exists(f"/proc/{pid}"):
                    done[rank] = pid
            assert self.run.refresh().state not in ("failed", "succeeded"), self._history()
            return len(done) == world_size

        self._await(all_there)
        return dict(done)

    def starts(self, attempt: int) -> set[int]:
        """The steps that processes of the attempt went on from."""
        return {int(path.read_text().split()[1]) for path in self._told.glob(f"{attempt}-*-*") if path.read_text()}

    def final_loss(self) -> str:
        self.run.wait(timeout=PATIENCE_S)
        assert self.run.state == "succeeded", self._history()
        return next(line.text for line in self.run.logs() if line.text.startswith("final loss"))

    def await_save(self, *, beyond: int) -> None:
        """Until such a step is on disk."""
        self._await(
            lambda: any(int(path.parent.name[-10:]) > beyond for path in self._saves.glob(f"*/step-*/{MANIFEST}"))
        )

    def await_recoveries(self, *levels: int) -> None:
        """Until they are on record, these and no others."""

        def are_there() -> bool:
            found = [event.data["level"] for event in self.run.events() if event.kind == "recovered"]
            assert found == list(levels[: len(found)]), self._history()
            return len(found) == len(levels)

        self._await(are_there)

    def _await(self, condition: Callable[[], bool]) -> None:
        await_that(condition, self._history, timeout_s=PATIENCE_S)

    def _history(self) -> str:
        events = [f"{event.at:.1f} {event.kind}: {event.message}" for event in self.run.events()]
        return "\n".join([*events, *(f"{line.rank}: {line.text}" for line in list(self.run.logs())[-60:])])


def test_a_rank_and_then_a_node_are_killed(
    installation: Installation, site: Site, tmp_path: Path, undisturbed_loss: str
) -> None:
    with installation.client() as client:
        training = Training(client, tmp_path)
        ranks = training.ranks_at(19, world_size=4)
        os.kill(ranks[3], signal.SIGKILL)
        training.open(20)
        replaced = training.ranks_at(39, world_size=4)
        assert set(ranks.values()).isdisjoint(replaced.values())
        training.await_recoveries(1)
        assert len(training.run.attempts()) == 1  # in place

        went_on_from = max(training.starts(1))  # a step or two before, where a rank had not made its copy yet
        training.await_save(beyond=went_on_from)
        site.kill_node(training.run.attempts()[0])
        training.open(40)
        assert training.final_loss() == undisturbed_loss
        assert len(training.run.attempts()) == 2
        assert min(training.starts(2)) > went_on_from  # not from the beginning
