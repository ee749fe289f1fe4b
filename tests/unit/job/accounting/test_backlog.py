"""Values that wait on a device: what comes out of them, and which ones may not wait."""

from __future__ import annotations

import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from windlass.job.accounting.backlog import Backlog, Judged  # noqa: E402
from windlass.job.accounting.clock import CudaClock, HostClock  # noqa: E402

pytestmark = pytest.mark.torch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class Elsewhere(HostClock):
    """As if what is here were on a device."""

    def __init__(self) -> None:
        self.copies = 0

    def capture(self, value: Any) -> Any:
        self.copies += 1
        return value.clone()

    def is_there(self, value: Any) -> bool:  # noqa: ARG002
        return False


@pytest.fixture
def clock() -> Elsewhere:
    return Elsewhere()


@pytest.fixture
def backlog(clock: Elsewhere) -> Backlog:
    return Backlog(clock)


def test_all_come_out_in_order_with_one_copy(backlog: Backlog, clock: Elsewhere) -> None:
    assert backlog.add(1, torch.tensor(1.5), torch.tensor([2.5]))
    assert backlog.add(2, None, torch.tensor(3.5, dtype=torch.bfloat16), scaled=True)
    assert backlog.add(3, 4.5, None)
    assert backlog.add(4, torch.tensor(5.5, requires_grad=True) * 2, 6)
    assert len(backlog) == 4
    assert backlog.capture().read() == [
        Judged(1, 1.5, 2.5, False),
        Judged(2, None, 3.5, True),
        Judged(3, 4.5, None, False),
        Judged(4, 11.0, 6.0, False),
    ]
    assert clock.copies == 1
    assert len(backlog) == 0
    assert backlog.can_keep


def test_nothing_waits_where_a_compiled_model_is_replayed_as_graphs(
    backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert backlog.add(1, torch.tensor(1.5), None)
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", sys)
    assert not backlog.add(2, torch.tensor(2.5), None)
    assert not backlog.can_keep


def test_numbers_alone_need_no_copy(backlog: Backlog, clock: Elsewhere) -> None:
    assert backlog.add(1, 1.0, 2.0)
    assert backlog.capture().read() == [Judged(1, 1.0, 2.0, False)]
    assert clock.copies == 0


def test_on_the_host_they_are_read_as_they_come() -> None:
    backlog = Backlog(HostClock())
    loss = torch.tensor(1.0)
    assert backlog.add(1, loss, None)
    loss.add_(1)
    assert not backlog.is_due
    assert backlog.add(2, torch.tensor(torch.inf), None)
    assert backlog.is_due
    assert backlog.capture().read() == [Judged(1, 1.0, None, False), Judged(2, torch.inf, None, False)]
    assert not backlog.is_due


def test_what_has_changed_is_not_judged(backlog: Backlog) -> None:
    loss, norm = torch.tensor(1.0, requires_grad=True) * 1, torch.tensor(2.0)
    assert backlog.add(1, loss, norm)
    assert backlog.add(2, torch.tensor(3.0), torch.tensor(4.0))
    with torch.no_grad():
        loss.add_(1)
    assert backlog.capture().read() == [Judged(1, None, 2.0, False), Judged(2, 3.0, 4.0, False)]
    assert not backlog.can_keep


def test_a_place_that_is_used_again_is_not_judged_by_what_came_later(backlog: Backlog) -> None:
    places = [torch.tensor(1.0), torch.tensor(2.0)]
    assert backlog.add(1, places[0], 0.5)
    assert backlog.add(2, places[1], 0.5)
    places[0].data.fill_(3.0)
    assert not backlog.add(3, places[0], 0.5)
    assert backlog.capture().read() == [Judged(1, None, 0.5, False), Judged(2, 2.0, 0.5, False)]


def test_one_tensor_may_be_both(backlog: Backlog) -> None:
    loss = torch.tensor(1.0)
    assert backlog.add(1, loss, loss)
    assert backlog.capture().read() == [Judged(1, 1.0, 1.0, False)]


def test_what_it_was_computed_from_does_not_stay(backlog: Backlog) -> None:
    loss = (torch.ones(3, requires_grad=True) * 2).sum()
    assert backlog.add(1, loss, None)
    kept: Any = backlog._entries[0][1]
    assert kept.tensor.grad_fn is None
    assert kept.tensor.data_ptr() == loss.data_ptr()


class Special(torch.Tensor):
    """As a distributed one is."""


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: torch.zeros(10_000)[3], id="a part of a large one"),
        pytest.param(lambda: torch.zeros(2), id="several numbers"),
        pytest.param(lambda: torch.tensor(1.0).as_subclass(Special), id="another kind"),
    ],
)
def test_some_tensors_cannot_wait(backlog: Backlog, make: Any) -> None:
    assert not backlog.add(1, make(), None)
    assert not backlog.add(1, None, make())
    assert len(backlog) == 0


def test_those_of_the_inference_mode_cannot_wait(backlog: Backlog) -> None:
    with torch.inference_mode():
        loss = torch.tensor(1.0) * 2
    assert not backlog.add(1, loss, None)


@needs_gpu
def test_on_a_gpu_they_are_what_they_were_then() -> None:
    device = torch.device("cuda", 0)
    clock = CudaClock(device)
    backlog = Backlog(clock)
    busy = torch.randn(4096, 4096, device=device)
    weight = torch.zeros((), device=device, requires_grad=True)
    for number in range(1, 301):
        for _ in range(2):
            busy = (busy @ busy).clamp(-1, 1)
        loss = weight * 2 + number
        assert backlog.add(number, loss, torch.full((1,), number / 2, device=device, dtype=torch.bfloat16))
        del loss
        torch.full((), -1.0, device=device)  # would have the memory, were it free
    assert backlog.add(301, torch.tensor(7.0), 8.0)
    pending = backlog.capture()
    mark = clock.mark()
    assert not clock.settle(mark), "it had two seconds of work"
    assert clock.settle(mark)
    *on_gpu, on_host = pending.read()
    assert on_host == Judged(301, 7.0, 8.0, False)
    assert [one.loss for one in on_gpu] == list(range(1, 301))
    assert [one.grad_norm for one in on_gpu] == pytest.approx([number / 2 for number in range(1, 301)], rel=1 / 128)
    assert backlog.can_keep


@needs_gpu
def test_a_graph_that_is_replayed_writes_to_one_place() -> None:
    device = torch.device("cuda", 0)
    clock = CudaClock(device)
    backlog = Backlog(clock)
    step, graph = torch.zeros((), device=device), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.add_(1)
        loss = step * 2
    graph.replay()
    assert backlog.add(1, loss, 0.5)
    graph.replay()
    assert not backlog.add(2, loss, 0.5)
    pending = backlog.capture()
    clock.settle(clock.mark())
    assert pending.read() == [Judged(1, None, 0.5, False)]
