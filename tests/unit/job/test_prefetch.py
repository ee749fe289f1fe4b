"""The prefetching loader: order, errors, ends, and the time that the loop waits."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from windlass import job  # noqa: E402
from windlass.job import handover  # noqa: E402
from windlass.job.accounting.waiting import waiting  # noqa: E402

pytestmark = pytest.mark.torch


def eventually(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.005)


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "windlass-loader"]


@pytest.mark.parametrize("prefetch", [0, 1, 2, 7])
def test_every_batch_once_and_in_order(prefetch: int) -> None:
    batches = job.loader([torch.tensor(number) for number in range(20)], prefetch=prefetch)
    assert len(batches) == 20
    for _ in range(2):  # as often as the source
        assert [int(batch) for batch in batches] == list(range(20))


def test_batches_keep_their_form() -> None:
    pair = namedtuple("pair", "x y")
    batch: dict[str, Any] = {"a": [torch.ones(2), "name"], "b": pair(torch.zeros(1), 3), "c": (torch.ones(1),)}
    (got,) = job.loader([batch], device="cpu")
    assert got["a"][1] == "name"
    assert got["a"][0].equal(torch.ones(2))
    assert type(got["b"]) is pair
    assert got["b"].y == 3
    assert isinstance(got["c"], tuple)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_error_of_the_source_comes_after_the_batches_before_it(prefetch: int) -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("no third batch")

    feed = iter(job.loader(source(), prefetch=prefetch))
    assert [next(feed), next(feed)] == [1, 2]
    with pytest.raises(KeyError, match="no third batch") as raised:
        next(feed)
    assert "source" in [entry.name for entry in raised.traceback]  # where it really happened
    with pytest.raises(StopIteration):
        next(feed)


def test_the_source_works_ahead_but_not_further_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "QUICK_S", 0.0)  # as one that takes its time
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    feed = iter(job.loader(source(), prefetch=3))
    eventually(lambda: len(made) == 4)  # three are ready, one waits for room
    assert next(feed) == 0
    eventually(lambda: len(made) == 5)
    del feed
    gc.collect()
    eventually(lambda: not loader_threads())
    assert len(made) == 5


def test_a_quick_source_rests_until_the_last_batch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "QUICK_S", math.inf)
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    feed = iter(job.loader(source(), prefetch=3))
    eventually(lambda: feed._ready._resting_until == 0)  # type: ignore[attr-defined]
    assert [next(feed), next(feed)] == [0, 1]
    assert len(made) == 4  # one is left, and the thread sleeps
    assert next(feed) == 2
    eventually(lambda: len(made) == 7)
    assert list(feed) == list(range(3, 100))


def test_a_break_ends_thread_and_source() -> None:
    ended = threading.Event()

    def source() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.set()

    for _ in job.loader(source()):
        break
    gc.collect()
    assert ended.wait(60)
    eventually(lambda: not loader_threads())


def test_a_process_that_ends_in_the_middle_of_its_data_ends() -> None:
    script = (
        "import itertools, torch\nfrom windlass import job\n"
        "feed = iter(job.loader(torch.ones(4) for _ in itertools.count()))\nprint(next(feed).sum().item())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4.0\n", "")


def test_a_process_that_ends_waits_for_the_end_of_a_source_that_nobody_reads_any_more() -> None:
    """Tensors let go of the interpreter's lock, and a thread that asks for it again while the interpreter ends takes
    the whole process with it: the last that knows a model may be its source."""
    script = """
import time
import torch
from windlass import job

def source():
    try:
        while True:
            yield torch.zeros(4)
    finally:
        began = time.monotonic()
        while time.monotonic() - began < 0.5:
            torch.zeros(4) + 1
        print("the source has ended", flush=True)

for batch in job.loader(source(), device="cpu"):
    break
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "the source has ended\n"), done.stderr


@pytest.mark.parametrize("prefetch", [0, 2])
def test_waiting_is_counted(prefetch: int) -> None:
    def slow() -> Iterator[int]:
        for number in range(4):
            time.sleep(0.05)  # what is measured, not a way to wait for something
            yield number

    before_s = waiting().total_s()
    for _ in job.loader(slow(), prefetch=prefetch):
        pass
    assert waiting().total_s() - before_s >= 0.15


def test_a_number_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="prefetch is -1, but must be a whole number from 0"):
        job.loader([], prefetch=-1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_batches_arrive_on_the_gpu_whole() -> None:
    source = (torch.full((1 << 20,), float(number)) for number in range(30))
    device = torch.device("cuda", 0)
    for number, batch in enumerate(job.loader(source, device=device)):
        assert batch.device == device
        assert batch.eq(number).all()
