"""The prefetching loader: order, errors, ends, and the time that the loop waits."""

from __future__ import annotations

import gc
import itertools
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
from windlass.job import handover, prefetch  # noqa: E402
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


def noting(made: list[Any], batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        made.append(batch)
        yield batch


def test_the_source_works_ahead_but_not_further_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "QUICK_S", 0.0)  # as one that takes its time
    monkeypatch.setattr(handover, "QUICKER", math.inf)
    made: list[int] = []
    feed = iter(job.loader(noting(made, iter(range(100))), prefetch=3))
    eventually(lambda: len(made) == 4)  # three are ready, one waits for room
    assert [next(feed), next(feed), next(feed)] == [0, 1, 2]  # the first ones say nothing of the source
    eventually(lambda: len(made) == 7)
    assert next(feed) == 3
    eventually(lambda: len(made) == 8)
    del feed
    gc.collect()
    eventually(lambda: not loader_threads())
    assert len(made) == 8


def test_a_quick_source_rests_until_the_last_batch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "QUICK_S", math.inf)
    made: list[int] = []
    feed = iter(job.loader(noting(made, iter(range(100))), prefetch=3))
    eventually(lambda: feed._ready._resting_until == 0)  # type: ignore[attr-defined]
    assert [next(feed), next(feed)] == [0, 1]
    assert len(made) == 4  # one is left, and the thread sleeps
    assert next(feed) == 2
    eventually(lambda: len(made) == 7)
    assert list(feed) == list(range(3, 100))


@pytest.mark.parametrize(
    ("batch", "is_light"),
    [
        ((torch.zeros(1 << 10), [torch.zeros(1 << 10)]), True),
        ({"tokens": torch.zeros(1 << 20, dtype=torch.uint8), "name": "x", "number": 1, "none": None}, True),
        (torch.zeros(1 << 20), False),
        ([torch.zeros(1 << 19)] * 2, False),
        ([0] * 100, False),
        (torch.eye(3).to_sparse(), False),
        (object(), False),
    ],
)
def test_more_of_light_batches_are_ready_if_nobody_said_how_many(
    batch: Any, is_light: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "QUICK_S", math.inf)
    made: list[Any] = []
    feed = iter(job.loader(noting(made, itertools.repeat(batch))))
    eventually(lambda: len(made) == 3)
    next(feed), next(feed)
    eventually(lambda: len(made) == (2 + 17 if is_light else 5))
    eventually(lambda: feed._ready._resting_until == (4 if is_light else 0))  # type: ignore[attr-defined]
    assert len(made) == (2 + 17 if is_light else 5)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "layout", [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
)
def test_what_is_told_of_a_tensor_is_all_that_it_holds(layout: torch.layout) -> None:
    blocks = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    tensor = torch.eye(4) if layout is torch.strided else torch.eye(4).to_sparse(layout=layout, blocksize=blocks)
    memory = prefetch._memory_of(tensor)
    assert all(part.layout is torch.strided for part in memory)
    if layout is torch.strided:
        assert memory == [tensor]
    elif layout is torch.sparse_coo:
        assert torch.sparse_coo_tensor(*memory, (4, 4)).to_dense().equal(torch.eye(4))
    else:
        held, other, values = memory
        assert torch.sparse_compressed_tensor(held, other, values, (4, 4), layout=layout).to_dense().equal(torch.eye(4))


def test_heavy_batches_among_light_ones_are_not_held_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "QUICK_S", math.inf)
    made: list[Any] = []
    batches = (torch.zeros(1 << 20 if number > 8 else 1) for number in range(1000))
    feed = iter(job.loader(noting(made, batches)))
    for _ in range(3):
        next(feed)
    eventually(lambda: feed._ready._resting_until == 0)  # type: ignore[attr-defined]
    assert len(made) == 10, "the first heavy one has no place beside the others"


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


class Event:
    """Of a copy, which has arrived or not."""

    def __init__(self, arrived: bool) -> None:
        self.arrived = arrived

    def query(self) -> bool:
        return self.arrived


class Stream:
    def __init__(self) -> None:
        self.awaited: list[Event] = []

    def wait_event(self, event: Event) -> None:
        self.awaited.append(event)


class OnDevice:
    """A tensor that a copier has made."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.used_by: list[Stream] = []

    def record_stream(self, stream: Stream) -> None:
        self.used_by.append(stream)


@pytest.mark.parametrize("arrived", [True, False])
def test_only_copies_that_have_not_arrived_are_waited_for(monkeypatch: pytest.MonkeyPatch, arrived: bool) -> None:
    def copy(batch: int) -> tuple[OnDevice, prefetch.Copied]:
        there = OnDevice(Event(arrived))
        return there, prefetch.Copied(event=there.event, tensors=[there])  # type: ignore[list-item]

    stream = Stream()
    monkeypatch.setattr(prefetch, "_copier", lambda _: copy)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    feed: Any = iter(job.loader(range(6), device="cpu", prefetch=3))
    eventually(lambda: len(feed._ready._items) == 3)
    before_s = waiting().total_s()
    batches = [next(feed) for _ in range(3)]
    assert stream.awaited == ([] if arrived else [batch.event for batch in batches])
    assert (waiting().total_s() == before_s) is arrived
    rest = list(feed)  # some come from an empty queue, and are not to be used before they are there
    assert all(batch.event in stream.awaited for batch in rest) or arrived
    assert all(batch.used_by == [stream] for batch in batches + rest)


def test_what_was_on_the_device_already_was_not_made() -> None:
    there, elsewhere = torch.ones(2, device="meta"), torch.zeros(3)
    made: list[torch.Tensor] = []
    got = prefetch.moved({"x": there, "y": [elsewhere, 3]}, torch.device("meta"), made)
    assert got["x"] is there
    assert [tensor.shape for tensor in made] == [(3,)]
    assert got["y"][0] is made[0]


def test_nothing_is_done_for_batches_of_which_nothing_was_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: pytest.fail("nobody needs it"))
    assert list(job.loader(range(5), device="meta")) == list(range(5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_batches_arrive_on_the_gpu_whole() -> None:
    source = (torch.full((1 << 20,), float(number)) for number in range(30))
    device = torch.device("cuda", 0)
    for number, batch in enumerate(job.loader(source, device=device)):
        assert batch.device == device
        assert batch.eq(number).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_memory_of_a_batch_is_not_used_again_while_the_gpu_still_reads_it() -> None:
    """Batches are dropped by the host long before the device comes to them, and the next ones want their memory."""
    device, size = torch.device("cuda", 0), 1 << 20
    feed: Any = iter(job.loader((torch.full((size,), float(number)) for number in range(40)), device=device))
    eventually(lambda: len(feed._ready._items) == 2 and all(item[1].event.query() for item in feed._ready._items))
    before_s = waiting().total_s()
    busy = torch.randn(4096, 4096, device=device)
    sums = []
    for number, batch in enumerate(feed):
        if number < 2:  # both had arrived: nobody has waited
            assert waiting().total_s() == before_s
            assert not waiting()._unread
        for _ in range(10):
            busy = (busy @ busy).clamp(-1, 1)
        sums.append(batch.sum())
        del batch
    assert [float(one) / size for one in sums] == list(range(40))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_that_are_on_the_gpu_already_are_passed_on() -> None:
    device = torch.device("cuda", 0)
    source = [(torch.full((4,), float(number), device=device), number) for number in range(10)]
    copy = prefetch._copier(device)
    assert copy(source[0]) == (source[0], None)
    batch, copied = copy((source[1][0], torch.ones(3)))
    assert copied is not None
    assert [tensor.data_ptr() for tensor in copied.tensors] == [batch[1].data_ptr()]
    assert all(got[0] is given[0] for got, given in zip(job.loader(source, device=device), source, strict=True))
