"""Distributed PyTorch on the local engine, warm and by torchrun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local_runs import LocalRuns, wait_for
from windlass.core.exits import ExitReason

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

ALL_REDUCE = """
import os, sys
loaded = "torch" in sys.modules
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
said = ("sum", value.item(), "world", dist.get_world_size(), "warm", loaded, "threads", torch.get_num_threads())
sys.stdout.write(" ".join(map(str, said)) + "\\n")  # at once: torchrun's workers share one pipe
dist.destroy_process_group()
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path, preimport=("numpy", "torch"))
    yield runs
    runs.clean_up()
    assert runs.processes() == []


def test_two_ranks_reduce_warm_as_cold(runs: LocalRuns) -> None:
    script = runs.script("reduce.py", ALL_REDUCE)
    lines = {}
    for warm in (True, False):
        attempt = runs.start("python", script, workers=2, warm=warm)
        exit = runs.wait(attempt).exit
        assert exit is not None
        assert exit.reason is ExitReason.COMPLETED, exit.message
        lines[warm] = [runs.output(attempt, rank=rank).decode() for rank in (0, 1)]
    assert lines[True] == ["sum 3.0 world 2 warm True threads 1\n"] * 2
    assert lines[False] == ["sum 3.0 world 2 warm False threads 1\n"] * 2


def test_generators_are_seeded_anew_and_can_be_seeded_alike(runs: LocalRuns) -> None:
    text = """
import torch, numpy
print(torch.initial_seed(), torch.rand(1).item(), numpy.random.rand())
torch.manual_seed(7); numpy.random.seed(7)
print(torch.rand(1).item(), numpy.random.rand())
"""
    script = runs.script("seeds.py", text)
    lines = []
    for warm in (True, True, False):
        attempt = runs.start("python", script, warm=warm)
        runs.wait(attempt)
        lines.append(runs.output(attempt).decode().splitlines())
    assert len({fresh for fresh, _ in lines}) == 3
    assert len({seeded for _, seeded in lines}) == 1


def test_a_bare_torchrun_works(runs: LocalRuns) -> None:
    script = runs.script("reduce.py", ALL_REDUCE)
    attempt = runs.start("torchrun", script, workers=2, self_launching=True)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.COMPLETED, exit.message + runs.log(attempt)
    assert runs.output(attempt).decode().count("sum 3.0 world 2") == 2


def test_a_failure_under_torchrun_is_the_workers_own(runs: LocalRuns) -> None:
    script = runs.script("fails.py", "raise ValueError('bad lr')\n")
    exit = runs.run("torchrun", script, workers=2, self_launching=True).exit
    assert exit is not None
    assert exit.reason is ExitReason.EXIT_CODE
    assert exit.message == "ValueError: bad lr (fails.py:1)"


def test_a_worker_that_is_killed_under_torchrun_was_killed(runs: LocalRuns) -> None:
    """Whatever its peer has to say of it."""
    text = "import os, signal, time\nif os.environ['RANK'] == '1':\n"
    text += "    open('gone', 'w').close()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    text += "while not os.path.exists('gone'):\n    time.sleep(0.01)\n"
    text += "raise RuntimeError('Read error [127.0.0.1]:26498: Connection reset by peer')\n"
    exit = runs.run("torchrun", runs.script("killed.py", text), workers=2, self_launching=True).exit
    assert exit is not None
    assert (exit.reason, exit.signal, exit.exit_code) == (ExitReason.SIGNAL, 9, None)
    assert exit.message == "rank 1 was killed by SIGKILL"


def test_two_virtual_nodes_train_together(tmp_path: Path) -> None:
    runs = LocalRuns(tmp_path, nodes=2, preimport=("numpy", "torch"))
    try:
        attempt = runs.start("python", runs.script("reduce.py", ALL_REDUCE))
        exit = runs.wait(attempt).exit
        assert exit is not None
        assert exit.reason is ExitReason.COMPLETED, exit.message
        assert runs.output(attempt, rank=1, node=1).startswith(b"sum 3.0 world 2")
    finally:
        runs.clean_up()


def test_killing_torchrun_leaves_no_worker(runs: LocalRuns) -> None:
    text = "import os, time\nprint('worker', os.getpid(), flush=True)\ntime.sleep(600)\n"
    attempt = runs.start("torchrun", runs.script("waits.py", text), workers=2, self_launching=True)
    wait_for(lambda: runs.log(attempt).count("worker") == 2, "both workers")
    runs.engine.stop(attempt, grace_s=10.0)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.CANCELLED
    assert runs.processes() == []
