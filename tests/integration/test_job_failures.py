"""A rank that fails ends the run within seconds, outside Windlass too, and its own error is the one to be read."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from tests.torch_processes import ROOT, start_process
from windlass.agent.ports import free_port

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

# A group waits for half an hour by default.
_AT_MOST_S = 120.0

START = """
import os, sys, torch
import torch.distributed as dist
from windlass import job
from tests.unit.job.parallel.models import batch, small_gpt
process = job.init()
dist.barrier()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    said: str


def run_ranks(body: str, count: int) -> list[Ended]:
    """Start a script on `count` ranks and wait for all of them, which must end by themselves."""
    shared = {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    environ = {**os.environ, **shared, "PYTHONPATH": os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])}
    processes = [
        start_process(START + body, environ={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}, folder=ROOT)
        for rank in range(count)
    ]
    try:
        said = [process.communicate(timeout=_AT_MOST_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Ended(code=process.wait(), said=text) for process, text in zip(processes, said, strict=True)]


# As where rank 0 hears of it long before the others do.
SLOW_TO_PASS_ON = """
import time
from windlass.job import failures
send = failures._send
def send_slowly(connections, line):
    for connection in connections:
        send([connection], line)
        time.sleep(0.5)
failures._send = send_slowly
"""
WAIT = "dist.all_reduce(torch.ones(1))\n"


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_raises_ends_the_others(failing: int) -> None:
    ranks = run_ranks(f"if process.rank == {failing}: raise ValueError('bad sample 17')\n" + WAIT, 3)
    assert [rank.code for rank in ranks] == [1, 1, 1]
    assert (
        "raise ValueError('bad sample 17')" in ranks[failing].said or "ValueError: bad sample 17" in ranks[failing].said
    )
    assert "consequence" not in ranks[failing].said
    for number, rank in enumerate(ranks):
        if number != failing:
            assert f"rank {failing} failed: ValueError: bad sample 17" in rank.said


def test_rank_0_stays_until_all_have_heard_of_it() -> None:
    ranks = run_ranks(
        SLOW_TO_PASS_ON + "if process.rank == 1: raise ValueError('bad sample 17')\nwhile True: time.sleep(0.1)\n", 4
    )
    assert [rank.code for rank in ranks] == [1, 1, 1, 1]
    for number in (0, 2, 3):
        assert "rank 1 failed: ValueError: bad sample 17" in ranks[number].said


def test_a_rank_that_raises_ends_ranks_that_compute() -> None:
    """Those that are in no collective notice as well: the store tells them."""
    ranks = run_ranks(
        "import time\nif process.rank == 1: raise ValueError('bad sample 17')\nwhile True: time.sleep(0.1)\n", 2
    )
    assert [rank.code for rank in ranks] == [1, 1]
    assert "windlass: rank 1 failed: ValueError: bad sample 17; rank 0 ends too" in ranks[0].said


def test_a_file_that_one_rank_lacks() -> None:
    ranks = run_ranks("if process.rank == 1: open('/nowhere/part-1.bin')\n" + WAIT, 2)
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/part-1.bin'" in ranks[1].said
    assert "rank 1 failed: FileNotFoundError" in ranks[0].said


def test_models_of_different_shapes_are_named_on_all_ranks() -> None:
    ranks = run_ranks("job.parallelize(small_gpt(layers=4 + process.rank), 'shard=2')\n", 2)
    for rank in ranks:
        assert rank.code == 1
        assert "RanksDisagree: rank 1 has another model than rank 0: blocks.4" in rank.said
        assert "and on rank 0 there is none" in rank.said
        assert "consequence" not in rank.said


def test_batches_of_different_shapes_are_named_on_all_ranks() -> None:
    ranks = run_ranks(
        "parallel = job.parallelize(small_gpt(), 'pipeline=2,accumulate=2')\n"
        "parallel.step(*batch(8 + 2 * process.rank))\n",
        2,
    )
    for rank in ranks:
        assert rank.code == 1
        assert "RanksDisagree: rank 1 has another batch than rank 0: inputs is (10, 8) torch.int64" in rank.said


def test_a_plan_that_does_not_fit_is_refused_with_the_numbers_that_would() -> None:
    ranks = run_ranks("job.parallelize(small_gpt(), 'tensor=3')\n", 2)
    for rank in ranks:
        assert rank.code == 1
        assert "InvalidPlan: plan tensor=3 needs a multiple of 3 processes" in rank.said
        assert "consequence" not in rank.said


def test_ranks_that_finish_one_after_the_other_are_no_failure() -> None:
    ranks = run_ranks("import time\nif process.rank == 1: time.sleep(3)\nprint('finished')\n", 2)
    assert [rank.code for rank in ranks] == [0, 0]
    assert all(rank.said.strip() == "finished" for rank in ranks)


@pytest.mark.parametrize("short", [0, 1])
def test_a_rank_with_fewer_batches_is_named(short: int) -> None:
    ranks = run_ranks(
        "parallel = job.parallelize(small_gpt(), 'data')\n"
        f"for _ in range(3 if process.rank == {short} else 5): parallel.step(*batch())\n",
        2,
    )
    other = 1 - short
    assert [ranks[short].code, ranks[other].code] == [0, 1]
    words = f"RanksDisagree: rank {short} ended after 3 steps while rank {other} was in step 4; all ranks need the same"
    assert words in ranks[other].said


@pytest.mark.parametrize("most", [1, 3])
def test_ranks_with_other_numbers_of_batches_to_evaluate_with_say_so(most: int) -> None:
    ranks = run_ranks(
        "parallel = job.parallelize(small_gpt(), 'data')\n"
        "for _ in range(2): parallel.step(*batch())\n"
        f"for _ in range({most} - process.rank): parallel.evaluate(*batch())\n"
        "for _ in range(2): parallel.step(*batch())\n",
        2,
    )
    at = [f"evaluation {most}", "step 3"]
    for rank, other in ((0, 1), (1, 0)):
        assert ranks[rank].code == 1
        assert f"RanksDisagree: rank {other} was in {at[other]} while rank {rank} was in {at[rank]}; all ranks" in (
            ranks[rank].said
        )
        assert "EnforceNotMet" not in ranks[rank].said
