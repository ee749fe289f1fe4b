"""Going on in data that has no position: the batches that are passed over are those that were trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

from tests.unit.job.processes import run_processes  # noqa: E402
from windlass.job.trainer import Callback, Fit, Trainer  # noqa: E402

pytestmark = pytest.mark.torch


class Watched(nn.Module):
    """Knows the samples that it was trained on, and draws random numbers itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(1, 16), nn.Dropout(0.2), nn.Linear(16, 1))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        self.seen.append(numbers.flatten().int().tolist())
        return self.layers(numbers / 60)  # type: ignore[no-any-return]


class Stop(Callback):
    def __init__(self, at: int | None) -> None:
        self.at = at

    def stepped(self, fit: Fit) -> None:
        fit.stopping = fit.step == self.at


def shuffled(workers: int = 0) -> Any:
    numbers = torch.arange(60.0).reshape(60, 1)
    return DataLoader(TensorDataset(numbers, numbers), batch_size=10, shuffle=True, num_workers=workers)


class Augmented(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Draws as often as the sample says, as cropping does."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.rand(1 + index % 3)[-1:]
        return index + noise, noise


def augmented() -> Any:
    return DataLoader(Augmented(), batch_size=10, shuffle=True, num_workers=1, persistent_workers=True)


def trained(folder: Path, data: Any, *, stop_at: int | None = None, epochs: int = 2) -> Watched:
    model = Watched()
    trainer = Trainer(epochs=epochs, checkpoints={"every": 1000, "folder": folder}, callbacks=[Stop(stop_at)])
    trainer.fit(model, data, loss=nn.functional.mse_loss, lr=0.01)
    return model


@pytest.mark.parametrize(("stops", "workers"), [([4], 0), ([6], 0), ([7], 0), ([2, 3, 8], 0), ([8], 1)])
def test_shuffled_data_goes_on_in_the_same_order(stops: list[int], workers: int, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", shuffled(workers))
    seen: list[list[int]] = []
    for stop in stops:
        seen += trained(tmp_path / "kept", shuffled(workers), stop_at=stop).seen
    rest = trained(tmp_path / "kept", shuffled(workers))
    assert seen + rest.seen == whole.seen
    for left, right in zip(rest.parameters(), whole.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("stops", [[4], [8], [15, 20]])
def test_workers_that_outlive_an_epoch_go_on_drawing_as_undisturbed(stops: list[int], tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", augmented(), epochs=4)
    for stop in stops:
        trained(tmp_path / "kept", augmented(), stop_at=stop, epochs=4)
    rest = trained(tmp_path / "kept", augmented(), epochs=4)
    for left, right in zip(rest.parameters(), whole.parameters(), strict=True):
        assert torch.equal(left, right)


def test_workers_whose_first_epoch_nobody_knows_any_more_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("windlass.job.passing._MOST_EPOCHS", 1)
    trained(tmp_path, augmented(), stop_at=8, epochs=4)
    trained(tmp_path, augmented(), stop_at=14, epochs=4)
    assert "data-position" not in capsys.readouterr().err
    trained(tmp_path, augmented(), epochs=4)
    assert "data-position: the first 14 batches were passed over, but with persistent" in capsys.readouterr().err


def test_an_order_that_nobody_knows_any_more_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as before:
        before.setattr(Fit, "state_dict", lambda fit: {"epoch": fit.epoch})
        trained(tmp_path / "shuffled", shuffled(), stop_at=4)
        trained(tmp_path / "list", list(shuffled()), stop_at=4)
    trained(tmp_path / "list", list(shuffled()))
    assert "data-position" not in capsys.readouterr().err
    trained(tmp_path / "shuffled", shuffled(), stop_at=5)
    assert "data-position: the first 4 batches were passed over" in capsys.readouterr().err
    trained(tmp_path / "shuffled", shuffled())  # in the order that it has had since
    assert "data-position" not in capsys.readouterr().err


OF_RANKS = """
import json
from pathlib import Path

import torch
from torch import nn

from tests.unit.job.test_passing import Stop, Watched, shuffled
from windlass import job

job.init()


def trained(name, stop_at):
    model = Watched()
    torch.manual_seed(job.rank)  # each rank has an order of its own
    kept = {"every": 1000, "folder": Path(FOLDER) / name}
    trainer = job.Trainer(epochs=2, checkpoints=kept, callbacks=[Stop(stop_at)])
    trainer.fit(model, shuffled(), loss=nn.functional.mse_loss, lr=0.01)
    return model.seen


whole = trained("whole", None)
parts = trained("kept", 8) + trained("kept", None)
print(json.dumps([whole, parts]))
"""


def test_each_rank_goes_on_in_its_own_order(tmp_path: Path) -> None:
    outputs = run_processes(f"FOLDER = {str(tmp_path)!r}\n{OF_RANKS}", tmp_path)
    orders = []
    for output in outputs:
        whole, parts = json.loads(next(line for line in output.splitlines() if line.startswith("[[")))
        assert len(whole) == 12
        assert parts == whole
        orders.append(whole)
    assert orders[0] != orders[1]
