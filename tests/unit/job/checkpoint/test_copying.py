"""Copies that go on beside the training, on a device that is as late with them as it may be."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from windlass.job.checkpoint import copying  # noqa: E402
from windlass.job.checkpoint.checkpoints import checkpoints  # noqa: E402
from windlass.job.checkpoint.copying import Copier, HostEnding, copy_now, has_free_core  # noqa: E402
from windlass.job.checkpoint.folder import list_saved  # noqa: E402
from windlass.job.checkpoint.layout import Move  # noqa: E402
from windlass.job.checkpoint.loading import Contents  # noqa: E402
from windlass.job.checkpoint.memory import FOLDER, NodeMemory  # noqa: E402
from windlass.job.session import session  # noqa: E402

pytestmark = pytest.mark.torch


class Late:
    """What was given to a device that does nothing before it must."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._moves = moves

    def precede(self) -> None:
        self.wait()

    def wait(self) -> None:
        with torch.no_grad():
            copy_now(self._moves)
        self._moves = ()

    def held_up_s(self, step_s: float) -> float:
        return 0.0 * step_s


@pytest.fixture
def free_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "has_free_core", lambda: True)
    monkeypatch.setattr(copying, "_WORTH_A_THREAD_BYTES", 1000)


@pytest.fixture
def late_device(monkeypatch: pytest.MonkeyPatch, free_core: None) -> None:
    monkeypatch.setattr(copying, "HostEnding", Late)


class Counting(nn.Module):
    """A parameter that has the number of its step, and a buffer that every forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1000))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self) -> Any:
        self.seen += 1
        return self.weight.sum()


def made() -> tuple[Counting, torch.optim.Optimizer]:
    model = Counting()
    return model, torch.optim.SGD(model.parameters(), lr=1.0, maximize=True)  # with a gradient of 1 it counts steps


@pytest.mark.usefixtures("late_device")
def test_the_optimizer_waits_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "memory"))
    monkeypatch.setattr(session(), "_checkpoint_dir", str(tmp_path))
    memory = NodeMemory(tmp_path / "memory")
    model, optimizer = made()
    went_on = []
    with checkpoints(model=model, optimizer=optimizer, folder=tmp_path, every=4, memory=1, overlap=True) as ckpt:
        for step in ckpt.steps(9):
            went_on.append(ckpt._snapshots._taken is not None)
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
            ckpt._snapshots._hear(None)  # none is left out
            for copy in memory.copies(0):
                values = memory.read(copy)["__0_0.distcp"]
                assert copy.step <= step
                assert bytes(torch.full((1000,), float(copy.step)).numpy().tobytes()) in bytes(values)
    assert any(went_on)
    assert [saved.manifest.step for saved in list_saved(tmp_path)] == [9, 8, 4]
    for saved in list_saved(tmp_path):
        state = {"model.weight": torch.zeros(1000), "model.seen": torch.zeros(())}
        Contents(saved.path).read_tensors(state)
        assert state["model.weight"].eq(saved.manifest.step).all()
        assert state["model.seen"] == saved.manifest.step


@pytest.mark.usefixtures("late_device")
def test_a_copy_goes_on_until_the_next_step(tmp_path: Path) -> None:
    model, optimizer = made()
    with checkpoints(model=model, optimizer=optimizer, folder=tmp_path, every=2, overlap=True) as ckpt:
        for done in range(1, 6):
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
            ckpt.step(done)
            assert (ckpt._snapshots._taken is not None) == (done % 2 == 0)
            ckpt._snapshots._hear(None)  # none is left out
    assert [saved.manifest.step for saved in list_saved(tmp_path)] == [5, 4, 2]


@pytest.mark.usefixtures("late_device")
def test_what_was_changed_under_a_copy_is_copied_again(tmp_path: Path) -> None:
    model, optimizer = made()
    with checkpoints(model=model, optimizer=optimizer, folder=tmp_path, every=2, overlap=True) as ckpt:
        for done in range(1, 4):
            with torch.no_grad():
                model.weight += 0  # by hand, before the optimizer knows
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
            ckpt.step(done)
    assert [saved.manifest.step for saved in list_saved(tmp_path)] == [3]
    state = {"model.weight": torch.zeros(1000)}
    Contents(list_saved(tmp_path)[0].path).read_tensors(state)
    assert state["model.weight"].eq(3).all()


@pytest.mark.usefixtures("late_device")
def test_an_optimizer_that_is_never_seen_is_not_trusted(tmp_path: Path) -> None:
    model, optimizer = made()
    with checkpoints(model=model, optimizer=optimizer, folder=tmp_path, every=1, overlap=True) as ckpt:
        for done in range(1, 4):
            with torch.no_grad():
                model.weight.data += 1  # as a recorded graph of the device would: nothing is told of it
            ckpt.step(done)
            assert ckpt._snapshots._taken is None
            ckpt.wait()
    assert [saved.manifest.step for saved in list_saved(tmp_path)] == [3, 2, 1]


def test_a_device_that_fails_leaves_the_error_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_device: None
) -> None:
    def fail(_: Late) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Late, "precede", fail)
    monkeypatch.setattr(Late, "wait", fail)
    hooks = MagicMock()
    monkeypatch.setattr(copying, "register_optimizer_step_pre_hook", hooks)
    model, optimizer = made()
    model().backward()

    def train() -> None:
        with checkpoints(model=model, optimizer=optimizer, folder=tmp_path, every=1, overlap=True) as ckpt:
            ckpt._snapshots._copier._before_update(optimizer)
            ckpt.step(1)
            assert ckpt._snapshots._taken is not None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    hooks.return_value.remove.assert_called_once_with()
    assert list_saved(tmp_path) == []


@pytest.mark.usefixtures("free_core")
def test_a_copy_within_the_host_goes_on_beside_the_step(tmp_path: Path) -> None:
    model = nn.ParameterList([torch.zeros(1 << 20) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, maximize=True)
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    went_on = []
    with checkpoints(model=model, optimizer=optimizer, folder=tmp_path, every=3, keep=9, overlap=True) as ckpt:
        for _ in ckpt.steps(10):
            went_on.append(ckpt._snapshots._taken is not None)
            optimizer.step()
            ckpt._snapshots._hear(None)  # none is left out
    assert any(went_on)
    assert [saved.manifest.step for saved in list_saved(tmp_path)] == [10, 9, 6, 3]
    for saved in list_saved(tmp_path):
        state = {f"model.{number}": torch.zeros(1 << 20) for number in range(4)}
        Contents(saved.path).read_tensors(state)
        assert all(tensor.eq(saved.manifest.step).all() for tensor in state.values())


@pytest.mark.usefixtures("free_core")
@pytest.mark.parametrize("count", [100, 1000])
def test_what_is_copied_in_no_time_needs_no_thread(tmp_path: Path, count: int) -> None:
    model = nn.ParameterList([torch.zeros(count)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, maximize=True)
    model[0].grad = torch.ones(count)
    went_on = []
    with checkpoints(model=model, optimizer=optimizer, folder=tmp_path, every=1, overlap=True) as ckpt:
        for done in range(1, 4):
            optimizer.step()
            ckpt.step(done)
            went_on.append(ckpt._snapshots._taken is not None and ckpt._snapshots._taken.copy.goes_on)
            ckpt._snapshots._hear(None)  # none is left out
    assert any(went_on) == (count == 1000)


@pytest.mark.usefixtures("free_core")
def test_little_is_not_left_to_the_next_step() -> None:
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with closing(Copier(optimizer, overlaps=True)) as copier:
        assert not copier.can_overlap(1000), "the optimizer's step was not seen"
        optimizer.step()
        assert copier.can_overlap(1000)
        assert copier.can_overlap(999) == torch.cuda.is_available()


def test_an_update_waits_for_the_thread_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def copy_bytes(moves: Sequence[Move]) -> None:
        begun.set()
        assert may_end.wait(60)
        copy_now(moves)

    monkeypatch.setattr(copying, "_copy_bytes", copy_bytes)
    source, target = torch.ones(10), torch.zeros(10)
    ending = HostEnding([Move(name="weight", source=source, target=target)])
    assert begun.wait(60)
    update = threading.Thread(target=lambda: (ending.precede(), source.zero_()))
    update.start()
    assert source.eq(1).all()
    may_end.set()
    update.join(60)
    assert target.eq(1).all()
    assert ending.held_up_s(1.0) > 0


@pytest.mark.parametrize(
    ("processes", "threads", "cores", "is_free"), [(1, 1, 2, True), (2, 1, 2, False), (1, 2, 2, False)]
)
def test_a_core_is_free_where_training_needs_fewer(
    processes: int, threads: int, cores: int, is_free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert has_free_core() is is_free


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_copies_beside_the_work_of_a_gpu_are_whole(tmp_path: Path) -> None:
    device = torch.device("cuda")
    model = nn.ParameterList([torch.zeros(32 << 20, device=device) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, maximize=True)
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    went_on = []
    with checkpoints(model=model, optimizer=optimizer, folder=tmp_path, every=3, keep=9, overlap=True) as ckpt:
        for _ in ckpt.steps(10):
            went_on.append(ckpt._snapshots._taken is not None)
            optimizer.step()
            ckpt._snapshots._hear(None)  # none is left out
    assert any(went_on)
    assert [saved.manifest.step for saved in list_saved(tmp_path)] == [10, 9, 6, 3]
    for saved in list_saved(tmp_path):
        state = {f"model.{number}": torch.zeros(32 << 20) for number in range(8)}
        Contents(saved.path).read_tensors(state)
        assert all(tensor.eq(saved.manifest.step).all() for tensor in state.values())
