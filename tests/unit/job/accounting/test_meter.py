"""The meter: what it logs, how far behind the device it reads, pauses, alerts and stops."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from windlass.core.plan import InvalidPlan, OnNan  # noqa: E402
from windlass.job.accounting import backlog, meter  # noqa: E402
from windlass.job.accounting.anomaly import SickStep  # noqa: E402
from windlass.job.accounting.clock import CudaClock  # noqa: E402
from windlass.job.accounting.health import Health  # noqa: E402
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
        self.is_behind = False
        self.asked_for_peak = 0
        self.marked: list[float] = []
        self.captured: list[Any] = []

    def mark(self) -> float:
        self.marked.append(self.now_s)
        return self.now_s

    def settle(self, mark: float) -> bool:
        self.reached_s = max(self.reached_s, mark)
        return not self.is_behind

    def between_s(self, earlier: float, later: float) -> float:
        assert later <= self.reached_s, "read before the device was there"
        return later - earlier

    def capture(self, value: Any) -> Any:
        self.captured.append(value)
        return value.clone() if isinstance(value, torch.Tensor) else float(value)

    def is_there(self, value: Any) -> bool:  # noqa: ARG002
        return self.lag == 0

    def peak_memory_bytes(self) -> int:
        self.asked_for_peak += 1
        return 1000 * self.asked_for_peak


class Loop:
    """A training loop of one second a step, and everything that came out of its meter."""

    def __init__(
        self,
        *,
        total: int | None = None,
        every: int | None = 1,
        policy: OnNan = OnNan.GO_ON,
        clock: Any = None,
    ) -> None:
        self.clock, self.waits = clock or DeviceClock(), Waiting()
        self.logged: list[tuple[int, int | None, dict[str, float]]] = []
        self.alerts: list[tuple[str, str, int]] = []
        self.told: list[int] = []
        self.meter = Steps(
            clock=self.clock,
            work=Work(tokens=100),
            health=Health(policy, alert=self._alerted),
            sampler=None,
            waits=self.waits,
            total=total,
            first=0,
            every=every,
            average=False,
            log=lambda step, total, values: self.logged.append((step, total, dict(values))),
            tell=self.told.append,
        )

    def _alerted(self, kind: str, message: str, *, step: int, once: bool) -> None:
        del once
        self.alerts.append((kind, message, step))

    def step(self, loss: Any = 1.0, seconds: float = 1.0, **metrics: float) -> int:
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


def test_the_peak_of_memory_is_asked_for_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(total=9)
    for number in range(1, 10):
        monkeypatch.setattr(meter, "PEAK_EVERY_S", 0.0 if number == 8 else math.inf)  # when step 6 is read
        loop.step()
    peaks = [values.get("peak_memory_bytes") for _, _, values in loop.logged]
    assert peaks == [None, None, None, 1000, 1000, 2000, 2000, 2000, 3000]


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
        self.clock.lag = 0
        self.meter = Steps(
            clock=self.clock,
            work=Work(),
            health=Health(policy, explode=explode, alert=self._alerted),
            sampler=None,
            waits=self.waits,
            total=None,
            first=0,
            every=every,
            average=False,
            log=lambda step, total, values: self.logged.append((step, total, dict(values))),
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


class WaitingLoop(Loop):
    """On a device, of which the loop reads something at every step: it is never ahead. Losses are on the device."""

    def settled(self) -> WaitingLoop:
        """When the first window has begun."""
        for number in range(1, 9):
            self.step(torch.tensor(float(number)))
        self.clock.marked.clear()
        self.clock.captured.clear()
        return self


def numbers_of(loop: Loop) -> list[int]:
    """The steps that were marked."""
    return [round(at_s) for at_s in loop.clock.marked]


def test_steps_that_nothing_is_logged_of_are_neither_marked_nor_copied() -> None:
    loop = WaitingLoop(every=10).settled()
    for number in range(9, 33):
        loop.step(torch.tensor(float(number)))
    assert numbers_of(loop) == [10, 20, 30]
    assert [captured.tolist() for captured in loop.clock.captured] == [
        [7, 8, 9, 10],
        list(range(11, 21)),
        list(range(21, 31)),
    ]
    assert [(step, values["loss"], values["grad_norm"]) for step, _, values in loop.logged] == [
        (10, 10.0, 0.5),
        (20, 20.0, 0.5),
        (30, 30.0, 0.5),
    ]
    assert [values["step_s"] for _, _, values in loop.logged] == [1.0, 1.0, 1.0]


def test_logs_of_them_come_two_steps_later_as_well() -> None:
    loop = WaitingLoop(every=10).settled()
    for number in range(9, 13):
        assert not loop.logged, number
        loop.step(torch.tensor(1.0))
    assert [step for step, *_ in loop.logged] == [10]


def test_a_sick_step_between_logs_is_alerted_under_its_own_number() -> None:
    loop = WaitingLoop(every=10).settled()
    for number in range(9, 23):
        loop.step(torch.tensor(math.nan if number == 15 else 1.0))
    assert loop.alerts == [("nan", "step 15: the loss is nan", 15)]


def test_the_end_reads_what_waits() -> None:
    loop = WaitingLoop(every=100).settled()
    loop.step(torch.tensor(math.nan))
    loop.step(torch.tensor(1.0))
    assert not loop.alerts
    loop.meter.close()
    assert loop.alerts == [("nan", "step 9: the loss is nan", 9)]


def test_steps_that_wait_are_told_at_once_and_once() -> None:
    loop = WaitingLoop(every=10).settled()
    for number in range(9, 41):
        loop.step(torch.tensor(1.0))
        assert loop.told[-1] == number
    assert loop.told == [1, 2, 3, *range(6, 41)]  # those before the sixth were read when it had been told


def test_a_host_that_is_ahead_marks_every_step() -> None:
    loop = WaitingLoop(every=10).settled()
    loop.clock.is_behind = True
    for _ in range(9, 16):
        loop.step(torch.tensor(1.0))
    assert numbers_of(loop) == [10, 13, 14, 15]  # step 10 is read after 12, and had to be waited for
    loop.clock.is_behind = False
    for _ in range(16, 26):
        loop.step(torch.tensor(1.0))
    assert numbers_of(loop) == [10, 13, 14, 15, 16, 20]
    assert [step for step, *_ in loop.logged] == [10, 20]


def test_what_waits_is_read_in_time_though_nothing_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = WaitingLoop(every=1000).settled()
    monkeypatch.setattr(meter, "_LONGEST_S", -1.0)
    for number in range(9, 14):
        loop.step(torch.tensor(math.nan if number == 11 else 1.0))
    assert numbers_of(loop) == [9, 10, 11, 12, 13]
    assert loop.alerts == [("nan", "step 11: the loss is nan", 11)]


def test_no_more_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MOST_STEPS", 5)
    loop = WaitingLoop(every=1000).settled()
    for _ in range(9, 20):
        loop.step(torch.tensor(1.0))
    assert numbers_of(loop) == [11, 16]  # five each, after the sixth


def test_a_loss_that_is_changed_in_place_is_not_judged_and_those_after_it_are_read_at_every_step() -> None:
    loop = WaitingLoop(every=10).settled()
    for number in range(9, 15):
        loss = torch.tensor(math.nan if number in (9, 12) else 1.0)
        loop.step(loss)
        if number == 9:
            loss.zero_().div_(0)  # no number again, but another one
    assert numbers_of(loop) == [10, 11, 12, 13, 14]
    assert loop.alerts == [("nan", "step 12: the loss is nan", 12)]
    assert loop.told == [1, 2, 3, *range(6, 13)]


def test_a_loss_that_is_always_in_the_same_place_is_read_at_every_step() -> None:
    loop = WaitingLoop(every=10).settled()
    place = torch.tensor(1.0)
    for number in range(9, 14):
        place.data.fill_(math.nan if number == 11 else number)  # as a graph does: torch does not know
        loop.step(place)
    assert numbers_of(loop) == [10, 11, 12, 13]
    assert loop.alerts == [("nan", "step 11: the loss is nan", 11)]
    assert [(step, values["loss"]) for step, _, values in loop.logged] == [(10, 10.0)]


def test_stop_reads_every_step_on_a_device() -> None:
    loop = WaitingLoop(every=100, policy=OnNan.STOP).settled()
    loop.step(torch.tensor(math.nan))
    loop.step(torch.tensor(1.0))
    with pytest.raises(SickStep, match="step 9: the loss is nan"):
        loop.step(torch.tensor(1.0))
    assert numbers_of(loop) == [9, 10, 11]


class CountingClock(CudaClock):
    marks = 0

    def mark(self) -> Any:
        self.marks += 1
        return super().mark()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("reads", [True, False], ids=["reads its loss", "is ahead"])
def test_a_loop_on_a_gpu(reads: bool) -> None:
    device = torch.device("cuda", 0)
    clock = CountingClock(device)
    loop = Loop(total=60, every=10, clock=clock)
    busy = torch.randn(4096, 4096, device=device)
    (busy @ busy).sum().item()  # libraries are loaded
    for number in range(1, 61):
        for _ in range(5):
            busy = (busy @ busy).clamp(-1, 1)
        loss = torch.full((), math.nan if number == 33 else float(number), device=device, requires_grad=True) * 2
        norm = torch.full((), number / 4, device=device)
        if reads:
            loss.item()
        assert loop.meter.done(loss, norm, lr=0.1) == number
    # Alone: the first five, the one after them, and every tenth. One that is ahead is found to be so at every step.
    assert clock.marks == 12 if reads else clock.marks >= 50
    assert [(step, values["loss"], values["grad_norm"]) for step, _, values in loop.logged] == [
        (step, 2.0 * step, step / 4) for step in range(10, 61, 10)
    ]
    assert all(0 < values["step_s"] < 1 for _, _, values in loop.logged)
    assert loop.alerts == [("nan", "step 33: the loss is nan", 33)]
    assert loop.told[-1] == 60
    assert loop.told == sorted(set(loop.told))


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidPlan, match="'halt'; options: go_on, skip, stop"):
        steps(on_nan="halt")
