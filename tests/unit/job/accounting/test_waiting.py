"""The account of waiting, on a device whose events are read later."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from windlass.job.accounting import waiting  # noqa: E402

pytestmark = pytest.mark.torch


class Device:
    """Every event lies 10 ms after the one before, and is reached if the device goes on."""

    def __init__(self) -> None:
        self.events = 0
        self.goes_on = True

    def event(self, **_: Any) -> Event:
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at_ms = 0.0

    def record(self, stream: Any) -> None:
        del stream
        self.device.events += 1
        self.at_ms = 10.0 * self.device.events

    def query(self) -> bool:
        return self.device.goes_on

    def elapsed_time(self, later: Event) -> float:
        return later.at_ms - self.at_ms


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    return device


def wait(account: waiting.Waiting, times: int) -> None:
    for _ in range(times):
        with account.measured(torch.device("cuda", 0)):
            pass


def test_waits_are_added_up_when_the_device_has_reached_them(device: Device) -> None:
    account = waiting.Waiting()
    device.goes_on = False
    wait(account, 3)
    assert account.total_s() == 0.0
    device.goes_on = True
    assert account.total_s() == pytest.approx(0.03)


def test_events_do_not_pile_up_where_nobody_asks(device: Device) -> None:
    account = waiting.Waiting()
    wait(account, 1000)
    assert len(account._unread) <= waiting._MOST_UNREAD
    assert account.total_s() == pytest.approx(10.0)
