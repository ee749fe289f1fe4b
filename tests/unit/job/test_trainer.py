"""The training loop that is made of the public helpers, in one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from windlass import job  # noqa: E402
from windlass.agent.layout import progress  # noqa: E402
from windlass.agent.progress import read_progress  # noqa: E402
from windlass.core.errors import InvalidInput  # noqa: E402
from windlass.job.checkpoint.folder import list_saved  # noqa: E402
from windlass.job.ordering import Order  # noqa: E402
from windlass.job.parallel.optimizer import Optimizer  # noqa: E402
from windlass.job.parallel.parallelize import Parallel  # noqa: E402
from windlass.job.session import Session  # noqa: E402
from windlass.job.trainer import Callback, Fit, Trainer  # noqa: E402

pytestmark = pytest.mark.torch


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def batches(count: int, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        inputs = torch.randn(16, 8, generator=draw)
        made.append((inputs, inputs[:, :3].argmax(1)))
    return made


def test_it_does_what_the_loop_by_hand_does() -> None:
    ours, by_hand = model(), model()
    data = batches(6)
    Trainer(epochs=2).fit(ours, data, optimizer=torch.optim.SGD, lr=0.1, momentum=0.9)
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in data * 2:
        nn.functional.cross_entropy(by_hand(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    for left, right in zip(ours.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(left, right)


def test_it_learns_evaluates_and_logs() -> None:
    seen: list[tuple[str, int]] = []

    class Diary(Callback):
        def started(self, fit: Fit) -> None:
            seen.append(("started", fit.step))

        def evaluated(self, fit: Fit) -> None:
            seen.append(("evaluated", fit.step))
            fit.evaluation["halved"] = fit.evaluation["eval_loss"] / 2

        def ended(self, fit: Fit) -> None:
            seen.append(("ended", fit.step))

    trainer = Trainer(steps=50, evaluate_every=20, callbacks=[Diary()], samples_per_step=16, log_every=10)
    fit = trainer.fit(model(), batches(8), evaluation=batches(2, seed=2), lr=0.02)
    assert seen == [("started", 0), ("evaluated", 20), ("evaluated", 40), ("evaluated", 50), ("ended", 50)]
    assert (fit.step, fit.epoch) == (50, 6)
    assert fit.evaluation["eval_loss"] < 0.8  # from 1.1
    last = job.last()
    assert last["eval_loss"] == pytest.approx(2 * last["halved"])
    assert {"loss", "grad_norm", "samples_per_s", "lr"} <= set(last)


def test_an_evaluation_is_the_mean_over_all_samples() -> None:
    ours, (whole, more) = model(), batches(2)
    parts = [(whole[0][:15], whole[1][:15]), (whole[0][15:], whole[1][15:]), more]
    fit = Trainer().fit(ours, batches(1), evaluation=parts, lr=0.0)
    inputs, targets = torch.cat((whole[0], more[0])), torch.cat((whole[1], more[1]))
    with torch.no_grad():
        true = nn.functional.cross_entropy(ours(inputs), targets)
    assert fit.evaluation["eval_loss"] == pytest.approx(float(true), rel=1e-6)


def test_what_comes_after_the_last_step_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Session({"WINDLASS_NODE_DIR": str(tmp_path)})
    monkeypatch.setattr("windlass.job.trainer.session", lambda: here)
    found: list[float] = []

    class Look(Callback):
        def evaluated(self, fit: Fit) -> None:
            assert fit.step == 2
            found.append(read_progress(str(tmp_path / progress(0))).finished_at)

    Trainer(steps=2, callbacks=[Look()]).fit(model(), batches(2), evaluation=batches(1))
    here.flush()
    assert len(found) == 1
    assert found[0] > 0


def test_a_schedule_multiplies_the_rates() -> None:
    rates: list[float] = []

    class Look(Callback):
        def stepped(self, fit: Fit) -> None:
            rates.append(fit.optimizer.param_groups[0]["lr"])

    trainer = Trainer(steps=4, schedule=lambda step: min(1.0, (step + 1) / 3), callbacks=[Look()])
    trainer.fit(model(), batches(2), lr=0.3)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.3])


def test_a_callback_can_go_on_from_an_earlier_state_and_stop() -> None:
    class Restored(Callback):
        def started(self, fit: Fit) -> None:
            fit.step = 5

        def stepped(self, fit: Fit) -> None:
            fit.stopping = fit.step == 7

    read: list[int] = []

    def data(parallel: Parallel) -> list[tuple[torch.Tensor, torch.Tensor]]:
        assert (parallel.data_rank, parallel.data_world) == (0, 1)
        return batches(4)

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        read.append(len(read))
        return nn.functional.cross_entropy(output, targets)

    fit = Trainer(steps=20, callbacks=[Restored()]).fit(model(), data, loss=loss)
    assert (fit.step, fit.epoch, len(read)) == (7, 1, 2)
    assert Trainer(steps=5, callbacks=[Restored()]).fit(model(), data).step == 5  # all done already


def test_data_without_a_length_and_data_that_ends() -> None:
    def endless() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return itertools.cycle(batches(3))

    assert Trainer(steps=7).fit(model(), endless()).step == 7
    assert Trainer().fit(model(), iter(batches(3))).step == 3
    assert Trainer(steps=3).fit(model(), iter(batches(3))).step == 3
    with pytest.raises(ValueError, match="epoch 2 has no batches, after 3 steps; an iterator can be read once"):
        Trainer(steps=4).fit(model(), iter(batches(3)))


def test_an_optimizer_may_be_made_by_hand() -> None:
    def half_the_rate_for_biases(parallel: Parallel) -> Optimizer:
        weights = [p for name, p in parallel.named_parameters() if name.endswith("weight")]
        biases = [p for name, p in parallel.named_parameters() if name.endswith("bias")]
        return job.optimizer(
            parallel, torch.optim.SGD, params=[{"params": weights, "lr": 0.2}, {"params": biases}], lr=0.1
        )

    fit = Trainer().fit(model(), batches(2), optimizer=half_the_rate_for_biases)
    assert [group["lr"] for group in fit.optimizer.param_groups] == [0.2, 0.1]


def test_data_with_an_order_goes_on_where_the_steps_do() -> None:
    class Later(Callback):
        def started(self, fit: Fit) -> None:
            fit.step = 3

    seen: list[list[int]] = []

    class Numbers:
        def __len__(self) -> int:
            return 40

        def __getitems__(self, ids: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
            seen.append(ids)
            return [(torch.full((8,), number / 40), torch.tensor(number % 3)) for number in ids]

    order = job.order(40, 8, seed=1)
    data = torch.utils.data.DataLoader(Numbers(), batch_sampler=order)  # type: ignore[arg-type]
    fit = Trainer(steps=7, prefetch=0, callbacks=[Later()]).fit(model(), data, lr=0.1)
    assert (fit.step, fit.share) == (7, 1.0)
    assert seen == [order.ids_at(8 * step, 8) for step in range(3, 7)]
    assert order.position == 56


class Numbers:
    """Batches that know how far they were read, epoch after epoch."""

    def __init__(self, count: int) -> None:
        self.all = batches(count)
        self.at = 0
        self.given: list[int] = []

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while self.at < len(self.all):
            self.given.append(self.at)
            self.at += 1
            yield self.all[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("stopped_at", [4, 6, 7])
@pytest.mark.parametrize("positioned", [True, False])
def test_it_goes_on_from_its_checkpoint(stopped_at: int, positioned: bool, tmp_path: Path) -> None:
    class Stop(Callback):
        def stepped(self, fit: Fit) -> None:
            fit.stopping = fit.step == stopped_at

    def data() -> Any:
        return Numbers(6) if positioned else batches(6)

    def schedule(step: int) -> float:
        return 1 / (1 + step)

    whole = model()
    Trainer(epochs=2, schedule=schedule).fit(whole, data(), lr=0.1)
    kept = {"every": 1000, "folder": tmp_path}
    Trainer(epochs=2, schedule=schedule, checkpoints=kept, callbacks=[Stop()]).fit(model(), data(), lr=0.1)
    assert list_saved(tmp_path)[0].manifest.metrics["epoch"] == (stopped_at - 1) // 6
    rest = data()
    ours = model()
    fit = Trainer(epochs=2, schedule=schedule, checkpoints=kept).fit(ours, rest, lr=0.1)
    assert (fit.step, fit.epoch) == (12, 1)
    for left, right in zip(ours.parameters(), whole.parameters(), strict=True):
        assert torch.equal(left, right)
    if positioned:
        assert rest.given == [number % 6 for number in range(stopped_at, 12)]  # nothing was read again


class Ids:
    """Samples that know when they were read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read.append(number)
        return torch.full((8,), number / self.count), torch.tensor(number % 3)


@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize("stopped_at", [None, 3, 4, 6])
def test_a_sampler_of_torch_is_told_each_epoch(by_batch: bool, stopped_at: int | None, tmp_path: Path) -> None:
    class Stop(Callback):
        def stepped(self, fit: Fit) -> None:
            fit.stopping = fit.step == stopped_at

    def data(ids: Ids) -> Any:
        sampler = torch.utils.data.DistributedSampler(ids, 1, 0)  # type: ignore[arg-type,var-annotated]
        if not by_batch:
            return torch.utils.data.DataLoader(ids, batch_size=4, sampler=sampler)  # type: ignore[arg-type,var-annotated]
        batches = torch.utils.data.BatchSampler(sampler, 4, drop_last=False)
        return torch.utils.data.DataLoader(ids, batch_sampler=batches)  # type: ignore[arg-type,var-annotated]

    whole, seen = Ids(16), []
    for epoch in range(3):
        sampler = torch.utils.data.DistributedSampler(whole, 1, 0)  # type: ignore[arg-type,var-annotated]
        sampler.set_epoch(epoch)
        seen += list(sampler)
    kept = {"every": 1000, "folder": tmp_path}
    if stopped_at is not None:
        Trainer(epochs=3, checkpoints=kept, callbacks=[Stop()], prefetch=0).fit(model(), data(Ids(16)))
    fit = Trainer(epochs=3, checkpoints=kept, prefetch=0).fit(model(), data(whole))
    assert fit.step == 12
    assert len(set(map(tuple, (seen[:16], seen[16:32], seen[32:])))) == 3
    assert whole.read == seen


def read_by(order: Order, ids: Ids | None = None) -> Any:
    return torch.utils.data.DataLoader(ids or Ids(order.dataset_size), batch_sampler=order)  # type: ignore[arg-type,var-annotated]


@pytest.mark.parametrize(
    ("trainer", "order", "steps"),
    [
        ({"epochs": 3}, {}, 8),
        ({}, {}, 2),
        ({"epochs": 3}, {"epochs": 2}, 5),
        ({"epochs": 2}, {"epochs": 3}, 5),
        ({}, {"epochs": 3}, 8),
        ({"steps": 7}, {}, 7),
    ],
)
def test_an_order_ends_with_the_epochs(trainer: dict[str, Any], order: dict[str, Any], steps: int) -> None:
    epochs: list[int] = []

    class Look(Callback):
        def stepped(self, fit: Fit) -> None:
            epochs.append(fit.epoch)

    fit = Trainer(**trainer, callbacks=[Look()], prefetch=0).fit(model(), read_by(job.order(44, 16, **order)))
    assert (fit.step, fit.total) == (steps, steps)
    assert epochs == [0, 0, 0, 1, 1, 1, 2, 2][:steps]


@pytest.mark.parametrize("stopped_at", [2, 3, 5, 8])
def test_an_order_goes_on_in_the_middle_and_ends_where_it_would(stopped_at: int, tmp_path: Path) -> None:
    class Stop(Callback):
        def stepped(self, fit: Fit) -> None:
            fit.stopping = fit.step == stopped_at

    kept = {"every": 1000, "folder": tmp_path}
    Trainer(epochs=3, checkpoints=kept, callbacks=[Stop()]).fit(model(), read_by(job.order(44, 16)))
    rest, order = Ids(44), job.order(44, 16)
    fit = Trainer(epochs=3, checkpoints=kept, prefetch=0).fit(model(), read_by(order, rest))
    assert (fit.step, fit.epoch, order.position) == (8, 2, 128)
    assert rest.read == order.ids_at(16 * stopped_at, 16 * (8 - stopped_at))


def test_evaluation_by_an_order_is_of_all_of_it_each_time() -> None:
    held_out = Ids(20)
    evaluation = read_by(job.order(20, 5, epochs=1, shuffle=False), held_out)
    Trainer(steps=4, evaluate_every=2).fit(model(), batches(4), evaluation=evaluation)
    assert held_out.read == [*range(20)] * 2
    with pytest.raises(InvalidInput, match=r"20 samples without an end; options: job\.order\(\.\.\., epochs=1\)"):
        Trainer(steps=4).fit(model(), batches(4), evaluation=read_by(job.order(20, 5)))


@pytest.mark.parametrize(
    ("trainer", "order", "says"),
    [
        ({"steps": 9}, {"epochs": 3}, "steps=9, and its data ends after 8: 44 samples, 16 in a step, epochs=3 in job"),
        ({}, {"global_batch": 45}, "has no whole batch: 44 samples, 45 in a step, epochs=1; options: a batch of 44 at"),
    ],
)
def test_an_order_that_is_too_short_is_refused(trainer: dict[str, Any], order: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Trainer(**trainer).fit(model(), read_by(job.order(44, **{"global_batch": 16, **order})))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": -1}, "steps of the Trainer is -1, but must be a whole number from 1, or None"),
        ({"evaluate_every": 0}, "evaluate_every of the Trainer is 0, but must be a whole number from 1"),
        ({"epochs": 1.5}, "epochs of the Trainer is 1.5"),
        ({"steps": 3, "epochs": 2}, "the Trainer has steps=3 and epochs=2; options: one of them, or neither"),
    ],
)
def test_a_length_that_is_none_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Trainer(**options)
    assert says in str(refused.value)
