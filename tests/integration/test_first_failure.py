"""A gang of real gloo ranks of which one fails: the run ends soon, and with that rank's own words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local_runs import LocalRuns, wait_for
from windlass.core.exits import Exit, ExitReason

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180), pytest.mark.xdist_group("warm torch")]

JOINED = """
import atexit, datetime, os, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
rank, world = dist.get_rank(), dist.get_world_size()
value = torch.ones(4)
dist.all_reduce(value)
"""
RAISES = """
def fails():
    raise ValueError("bad batch on rank %d" % rank)
if rank == 1:
    fails()
dist.all_reduce(value)
"""
# The one that fails takes its time to go, after it has closed its connections: the others are gone before it.
RAISES_AND_LINGERS = """
if rank == 1:
    atexit.register(time.sleep, 1.5)
    atexit.register(dist.destroy_process_group)
    raise ValueError("bad batch on rank 1")
dist.all_reduce(value)
"""
RAISES_AND_HANGS = """
if rank == 1:
    threading.Thread(target=time.sleep, args=(600,)).start()
    atexit.register(print)
    dist.destroy_process_group()
    raise ValueError("bad batch on rank 1")
dist.all_reduce(value)
"""
SHAPES = """
dist.all_reduce(torch.ones(1000 if rank == 1 else 10))
dist.all_reduce(value)
"""
MISSING_FILE = """
if rank == 1:
    open("/nowhere/part-1.bin")
dist.barrier()
"""
LEAVES_EARLY = """
if rank == 1:
    sys.exit(0)
time.sleep(0.5)
dist.all_reduce(value)
"""
KILLED = """
if rank == 1:
    os.kill(os.getpid(), 9)
dist.all_reduce(value)
"""


@pytest.fixture(scope="module")
def engine_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRuns]:
    """One launcher that has loaded PyTorch: that takes longer than all the rest."""
    runs = LocalRuns(tmp_path_factory.mktemp("runs"), preimport=("numpy", "torch"))
    yield runs
    runs.clean_up()
    assert runs.processes() == []


@pytest.fixture
def runs(engine_of_all: LocalRuns) -> Iterator[LocalRuns]:
    yield engine_of_all
    wait_for(lambda: engine_of_all.processes() == [], "the end of all its processes")


def end_of(runs: LocalRuns, text: str, *, launcher: str = "python", **options: int) -> Exit:
    attempt = runs.start(launcher, runs.script("train.py", JOINED + text), **options)
    exit = runs.wait(attempt).exit  # which has far less patience than gloo
    assert exit is not None
    return exit


@pytest.mark.parametrize("text", [RAISES, RAISES_AND_LINGERS, RAISES_AND_HANGS])
def test_the_rank_that_raised_is_named_with_its_traceback(runs: LocalRuns, text: str) -> None:
    exit = end_of(runs, text, workers=3)
    assert (exit.reason, exit.exit_code, exit.rank) == (ExitReason.EXIT_CODE, 1, 1), exit
    assert exit.message.startswith("ValueError: bad batch on rank 1 (train.py:")
    assert exit.traceback is not None
    assert exit.traceback.startswith("Traceback (most recent call last):")
    assert exit.traceback.endswith("ValueError: bad batch on rank 1")
    assert "gloo" not in exit.traceback


def test_a_file_that_one_rank_misses(runs: LocalRuns) -> None:
    exit = end_of(runs, MISSING_FILE, workers=2)
    assert (exit.rank, exit.reason) == (1, ExitReason.EXIT_CODE)
    assert "No such file or directory: '/nowhere/part-1.bin'" in exit.message


def test_shapes_that_differ(runs: LocalRuns) -> None:
    exit = end_of(runs, SHAPES, workers=2)
    assert exit.reason in (ExitReason.EXIT_CODE, ExitReason.SIGNAL), exit
    assert "op.preamble.length <= op.nbytes" in exit.message, exit


def test_a_rank_that_left_early_is_named(runs: LocalRuns) -> None:
    exit = end_of(runs, LEAVES_EARLY, workers=2)
    assert exit.rank == 0
    assert exit.message.endswith("; rank 1 had ended before, with code 0"), exit


def test_under_torchrun_too(runs: LocalRuns) -> None:
    exit = end_of(runs, RAISES_AND_LINGERS, launcher="torchrun", workers=2, self_launching=True)
    assert exit.message.startswith("ValueError: bad batch on rank 1 (train.py:"), exit


def test_ranks_that_end_because_another_one_said_that_it_failed(runs: LocalRuns) -> None:
    """They are gone before it: it tells them first."""
    text = "import time\nfrom windlass import job\nif job.init().rank == 1:\n    nothing_like_this\ntime.sleep(600)\n"
    exit = runs.run("python", runs.script("train.py", text), workers=3).exit
    assert exit is not None
    assert (exit.rank, exit.message) == (1, "NameError: name 'nothing_like_this' is not defined (train.py:4)"), exit
    assert exit.traceback is not None
    assert exit.traceback.endswith("NameError: name 'nothing_like_this' is not defined")


def test_a_plan_that_does_not_fit(runs: LocalRuns) -> None:
    script = runs.script("train.py", "from windlass import job\njob.plan.sized(job.world_size)\n")
    attempt = runs.start("python", script, workers=2, env={"WINDLASS_PLAN": '{"tensor": 3}'})
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert "InvalidPlan: plan tensor=3 needs a multiple of 3 processes" in exit.message
    assert exit.traceback is not None
    assert exit.traceback.endswith("and the run has 2; 3 processes fit")


def test_a_rank_that_was_killed(runs: LocalRuns) -> None:
    exit = end_of(runs, KILLED, workers=3)
    assert (exit.reason, exit.rank, exit.signal) == (ExitReason.SIGNAL, 1, 9)


@pytest.mark.parametrize("text", [RAISES, RAISES_AND_LINGERS])
def test_across_nodes_too(tmp_path: Path, text: str) -> None:
    runs = LocalRuns(tmp_path, nodes=2, preimport=("numpy", "torch"))
    try:
        exit = end_of(runs, text)
        assert (exit.rank, exit.reason) == (1, ExitReason.EXIT_CODE), exit
        assert exit.message.startswith("ValueError: bad batch on rank 1")
    finally:
        runs.clean_up()
