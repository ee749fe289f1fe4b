"""The meter: what it logs, how far behind the device it reads, pauses, alerts and stops."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from windlass.core.plan import OnNan  # noqa: E402
from windlass.job.accounting.anomaly import SickStep, Watch  # noqa: E402
from windlass.job.accounting.meter import Steps, steps  # noqa: E402
from windlass.job.accounting.waiting import Waiting  # noqa: E402
from windlass.job.accounting.window import Work  # noqa: E402

pytestmark = pytest.mark.torch


class DeviceClock:
    """A device that works behind the host: a mark is a place in its queue, reached when somebody waits for it."""

    lag = 2

    def __init__(self) -> None:
        self.now_s = 0.0
        self.reached_s = -1.0

    def mark(self) -> float:
        return self.now_s

    def settle(self, mark: float) -> None:
        self.reached_s = max(self.reached_s, mark)

    def between_s(self, earlier: float, later: float) -> float:
        assert later <= self.reached_s, "read before the device was there"
        return later - earlier

    def capture(self, value: Any) -> float:
        return float(value)

    def peak_memory_bytes(self) -> int:
        return 1000


class Loop:
    """A training loop of one second a step, and everything that came out of its meter."""

    def __init__(self, *, total: int | None = None, every: int | None = 1, policy: OnNan = OnNan.GO_ON) -> None:
        self.clock, self.waits = DeviceClock(), Waiting()
        self.logged: list[tuple[int, int | None, dict[str, float]]] = []
        self.alerts: list[tuple[str, str, int]] = []
        self.meter = Steps(
            clock=self.clock,
            work=Work(tokens=100),
            watch=Watch(30.0),
            policy=policy,
            sampler=None,
            waits=self.waits,
            total=total,
            first=0,
            every=every,
            average=False,
            log=lambda step, total, values: self.logged.append((step, total, dict(values))),
            alert=lambda kind, message, *, step: self.alerts.append((kind, message, step)),
        )

    def step(self, loss: float = 1.0, seconds: float = 1.0, **metrics: float) -> int:
        self.clock.now_s += seconds
        return self.meter.done(loss, 0.5, **metrics)


def test_values_are_read_two_steps_later_and_the_last_ones_at_the_end() -> None:
    loop = Loop(total=6)
    for number in range(1, 6):
        assert loop.step(loss=number, lr=0.1) == number
        assert [step for step, *_ in loop.logged] == list(range(1, number - 1))
    loop.step(loss=6)
    assert [step for step, *_ in loop.logged] == [1, 2, 3, 4, 5, 6]
    step, total, values = loop.logged[4]
    assert (step, total) == (5, 6)
    assert values == {
        "loss": 5,
        "grad_norm": 0.5,
        "lr": 0.1,
        "step_s": 1.0,
        "data_wait_s": 0.0,
        "compute_s": 1.0,
        "tokens_per_s": 100.0,
        "peak_memory_bytes": 1000,
    }


def test_the_first_steps_are_no_part_of_the_figures() -> None:
    loop = Loop(total=5)
    loop.step(seconds=500)  # a compiler at work
    for _ in range(4):
        loop.step()
    assert ["step_s" in values for _, _, values in loop.logged] == [False, False, False, True, True]
    assert loop.logged[-1][2]["step_s"] == 1.0


def test_pauses_do_not_count() -> None:
    loop = Loop(total=8, every=4)
    for number in range(1, 9):
        loop.step()
        if number in (5, 6):
            with loop.meter.pause(), loop.waits.measured():
                loop.clock.now_s += 100
    assert [step for step, *_ in loop.logged] == [4, 8]
    assert loop.logged[1][2]["step_s"] == 1.0
    assert loop.logged[1][2]["data_wait_s"] == 0.0


def test_the_number_of_steps_between_logs_follows_their_speed() -> None:
    loop = Loop(every=None)
    for _ in range(300):
        loop.step(seconds=0.01)
    loop.meter.close()
    logged = [step for step, *_ in loop.logged]
    assert logged[-4:] == [150, 200, 250, 300]
    assert loop.logged[-1][2]["step_s"] == pytest.approx(0.01)


def test_a_loss_that_is_no_number_is_alerted_once_and_training_goes_on() -> None:
    loop = Loop()
    for number in range(1, 11):
        loop.step(loss=math.nan if number > 3 else 1.0)
    loop.meter.close()
    assert loop.alerts == [("nan", "step 4: the loss is nan", 4)]
    assert math.isnan(loop.logged[-1][2]["loss"])


def test_stop_raises_two_steps_later_and_logs_what_it_saw() -> None:
    loop = Loop(policy=OnNan.STOP)
    for number in range(1, 6):
        loop.step(loss=math.nan if number == 4 else 1.0)
    with pytest.raises(SickStep, match="step 4: the loss is nan"):
        loop.step()
    assert loop.alerts == [("nan", "step 4: the loss is nan", 4)]
    assert (loop.logged[-1][0], str(loop.logged[-1][2]["loss"])) == (4, "nan")


def test_alone_on_a_cpu_with_a_plain_module() -> None:
    model = torch.nn.Linear(4, 4)
    with steps(model, total=5, samples_per_step=8, every=1) as meter:
        for _ in range(5):
            loss = model(torch.ones(8, 4)).square().mean()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            meter.done(loss, norm, lr=torch.tensor(0.1))
    from windlass import job

    last = job.last()
    assert {"loss", "grad_norm", "lr", "samples_per_s", "step_s", "peak_memory_bytes"} <= set(last)
    assert "mfu" not in last  # no peak is known of a CPU
    assert last["grad_norm"] == pytest.approx(float(norm))


def test_a_report_of_an_optimizer_is_read() -> None:
    class Report:
        grad_norm = torch.tensor(2.0)
        loss_scale = 1024.0
        skipped = False

    loop = Loop(total=1)
    loop.meter.done(1.0, Report())
    assert loop.logged == [(1, 1, {"loss": 1.0, "grad_norm": 2.0, "loss_scale": 1024.0})]


class HostLoop(Loop):
    """On a CPU, where values are there at once."""

    def __init__(self, *, every: int, policy: OnNan = OnNan.GO_ON, explode: float | None = 30.0) -> None:
        super().__init__(every=every, policy=policy)
        self.told: list[int] = []
        self.clock.lag = 0
        self.meter = Steps(
            clock=self.clock,
            work=Work(),
            watch=Watch(explode),
            policy=policy,
            sampler=None,
            waits=self.waits,
            total=None,
            first=0,
            every=every,
            average=False,
            log=lambda step, total, values: self.logged.append((step, total, dict(values))),
            alert=lambda kind, message, *, step: self.alerts.append((kind, message, step)),
            tell=self.told.append,
        )


def test_steps_that_are_not_logged_are_told_and_timed_all_the_same() -> None:
    loop = HostLoop(every=10)
    for number in range(1, 31):
        loop.step(loss=torch.tensor(float(number)))
        if number == 25:
            with loop.meter.pause():
                loop.clock.now_s += 100
    assert loop.told == list(range(1, 31))
    assert [(step, values["loss"]) for step, _, values in loop.logged] == [(10, 10.0), (20, 20.0), (30, 30.0)]
    assert [values["step_s"] for _, _, values in loop.logged[1:]] == [1.0, 1.0]


def test_a_loss_that_is_no_number_is_alerted_at_once_also_between_logs() -> None:
    loop = HostLoop(every=1000)
    for number in range(1, 21):
        loop.step(loss=math.nan if number == 15 else 1.0)
        assert loop.alerts == ([] if number < 15 else [("nan", "step 15: the loss is nan", 15)])


def test_an_explosion_between_logs_is_alerted_with_the_next_log() -> None:
    loop = HostLoop(every=100)
    for number in range(1, 101):
        loop.step(loss=1000.0 if number == 90 else 1.0)
    assert [(kind, step) for kind, _, step in loop.alerts] == [("exploded", 90)]


def test_stop_stops_in_the_very_step() -> None:
    loop = HostLoop(every=100, policy=OnNan.STOP)
    for _ in range(9):
        loop.step()
    with pytest.raises(SickStep, match="step 10: the loss is nan"):
        loop.step(loss=math.nan)
