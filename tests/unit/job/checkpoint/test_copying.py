"""Copies that go on beside the training, on a device that is as late with them as it may be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from windlass.job.checkpoint import copying  # noqa: E402
from windlass.job.checkpoint.checkpoints import checkpoints  # noqa: E402
from windlass.job.checkpoint.copying import Copier, copy_now  # noqa: E402
from windlass.job.checkpoint.folder import list_saved  # noqa: E402
from windlass.job.checkpoint.layout import Move  # noqa: E402
from windlass.job.checkpoint.loading import Contents  # noqa: E402
from windlass.job.checkpoint.memory import FOLDER, NodeMemory  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


class Late:
    """What was given to a device that does nothing before it must."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._moves = moves

    def synchronize(self) -> None:
        with torch.no_grad():
            copy_now(self._moves)
        self._moves = ()

    def elapsed_time(self, other: Any) -> float:
        return 0.0 * id(other)


@pytest.fixture
def late_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_beside(self: Copier, moves: Sequence[Move]) -> list[Any]:
        del self
        late = Late(moves)
        return [(CPU, late, late)] if moves else []

    monkeypatch.setattr(Copier, "_has_device", lambda self: self is not None)
    monkeypatch.setattr(Copier, "_is_on_device", lambda self, move: self is not None and move.source.device == CPU)
    monkeypatch.setattr(Copier, "_copy_beside", copy_beside)
    monkeypatch.setattr(copying, "wait_on_device", lambda _, end: end.synchronize())


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
    memory = NodeMemory(tmp_path / "memory")
    model, optimizer = made()
    went_on = []
    with checkpoints(model=model, optimizer=optimizer, folder=tmp_path, every=4, memory=1, overlap=True) as ckpt:
        for step in ckpt.steps(9):
            ckpt.wait()
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
            went_on.append(ckpt._snapshots._taken is not None)
            for copy in memory.copies(0):
                values = memory.read(copy)["__0_0.distcp"]
                assert copy.step <= step
                assert bytes(torch.full((1000,), float(copy.step)).numpy().tobytes()) in values.numpy().tobytes()
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_copies_beside_the_work_of_a_gpu_are_whole(tmp_path: Path) -> None:
    device = torch.device("cuda")
    model = nn.ParameterList([torch.zeros(32 << 20, device=device) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, maximize=True)
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    with checkpoints(model=model, optimizer=optimizer, folder=tmp_path, every=3, keep=9, overlap=True) as ckpt:
        for _ in ckpt.steps(10):
            ckpt.wait()
            optimizer.step()
    for saved in list_saved(tmp_path):
        state = {f"model.{number}": torch.zeros(32 << 20) for number in range(8)}
        Contents(saved.path).read_tensors(state)
        assert all(tensor.eq(saved.manifest.step).all() for tensor in state.values())
