"""When runs start, told from what is known of how long runs last."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.unit.scheduling.core.clusters import node, policy, running, share, snapshot, waiting, want
from windlass.scheduling.core import index
from windlass.scheduling.core.forecast import Forecast, forecast_start, forecast_starts
from windlass.scheduling.core.learned import History, Lasted, Learned
from windlass.scheduling.core.types import Snapshot

HOUR = 3600.0
NOW = 1e6


def learned(seconds: float, *, times: int = 200, gpus: float = 8) -> Learned:
    history = History()
    for _ in range(times):
        history.add(Lasted(gpus=gpus, project="p", seconds=seconds))
    return history.learn()


def full(run_id: str, where: str, age: float = 0.0, **more: object):  # type: ignore[no-untyped-def]
    return running(run_id, share(where, gpus=8), started_at=NOW - age, **more)  # type: ignore[arg-type]


def hours(found: Forecast | None) -> list[float | None]:
    assert found is not None
    times = (found.earliest, found.likely, found.latest)
    return [None if at is None else (at - NOW) / HOUR for at in times]


def test_what_has_room_starts_now() -> None:
    found = forecast_start(snapshot([waiting("w")], [node("a")]), policy(), NOW, "w")
    assert found == Forecast(earliest=NOW, likely=NOW, latest=NOW)


def test_a_run_that_does_not_wait_has_no_forecast() -> None:
    assert forecast_start(snapshot([], [node("a")], running=[full("r", "a")]), policy(), NOW, "r") is None
    assert forecast_starts(snapshot([], [node("a")]), policy(), NOW) == {}


def test_the_next_starts_when_what_runs_is_over_as_learned() -> None:
    """Runs of this kind last ten hours, and the one before it has gone for four."""
    queue = [waiting("w", want(gpus=8), submitted_at=NOW, queued_at=NOW)]
    here = snapshot(queue, [node("a")], running=[full("r", "a", 4 * HOUR)])
    here = replace(here, learned=learned(10 * HOUR))
    earliest, likely, latest = hours(forecast_start(here, policy(preempts=False), NOW, "w"))
    assert earliest is not None
    assert likely is not None
    assert latest is not None
    assert 2 < earliest <= likely <= latest < 9


def test_whoever_is_behind_starts_after_those_ahead() -> None:
    queue = [waiting(f"w{at}", want(gpus=8), submitted_at=NOW, queued_at=NOW - 100 + at) for at in range(4)]
    here = replace(snapshot(queue, [node("a")], running=[full("r", "a", HOUR)]), learned=learned(2 * HOUR))
    found = forecast_starts(here, policy(preempts=False), NOW)
    likely = [hours(found[f"w{at}"])[1] for at in range(4)]
    assert likely == sorted(likely, key=lambda at: at or 0.0)
    assert likely[3] is not None
    assert 4 < likely[3] < 12


def test_a_known_end_is_believed() -> None:
    queue = [waiting("w", want(gpus=8), submitted_at=NOW, queued_at=NOW)]
    here = snapshot(queue, [node("a")], running=[full("r", "a", 100 * HOUR, ends_at=NOW + HOUR)])
    assert hours(forecast_start(here, policy(preempts=False), NOW, "w"))[2] == pytest.approx(1.0)


def test_a_preemption_brings_the_start_after_the_notice() -> None:
    queue = [waiting("w", want(gpus=8), priority=1, submitted_at=NOW, queued_at=NOW)]
    here = snapshot(queue, [node("a")], running=[full("r", "a", 10 * HOUR)])
    found = forecast_start(here, policy(grace_s=30.0), NOW, "w")
    assert found == Forecast(earliest=NOW + 30, likely=NOW + 30, latest=NOW + 30)


def test_beyond_the_horizon_nothing_is_told() -> None:
    queue = [waiting("w", want(gpus=8), submitted_at=NOW), waiting("never", want(gpus=9), submitted_at=NOW)]
    here = snapshot(queue, [node("a")], running=[full("r", "a", 500 * HOUR)])
    found = forecast_starts(here, policy(preempts=False), NOW, horizon_s=HOUR)
    assert found["w"].latest is None
    assert found["never"] == Forecast(earliest=None, likely=None, latest=None)


def crowd(count: int) -> Snapshot:
    source = random.Random(0)
    nodes = [node(f"n{at}") for at in range(count)]
    held = [full(f"r{at}", f"n{at}", source.expovariate(1e-4)) for at in range(count)]
    queue = [
        waiting(f"w{at}", want(gpus=source.choice([1, 2, 8])), submitted_at=NOW, queued_at=NOW - at)
        for at in range(count)
    ]
    return replace(snapshot(queue, nodes, running=held), learned=learned(HOUR))


def test_the_same_snapshot_has_the_same_forecast_in_whatever_order() -> None:
    here = crowd(40)
    shuffled = replace(here, running=here.running[::-1], waiting=here.waiting[::-1], nodes=here.nodes[::-1])
    rules = policy(rank=index.rank)
    assert forecast_starts(here, rules, NOW) == forecast_starts(shuffled, rules, NOW)
    assert forecast_start(here, rules, NOW, "w7") == forecast_start(shuffled, rules, NOW, "w7")


def test_the_effort_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are counted, since time is not the same on every machine."""
    from windlass.scheduling.core import forecast

    looked = 0
    decide = forecast.decide

    def counted(snapshot: Snapshot, *rest: object) -> object:
        nonlocal looked
        looked += 1
        return decide(snapshot, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(forecast, "decide", counted)
    found = forecast_starts(crowd(400), policy(), NOW, effort=1000)
    assert looked <= 1 + forecast.LEAST_SAMPLES * (forecast.LEAST_PASSES - 1)
    assert sum(each.likely is not None for each in found.values()) > 200


def test_lengths_are_drawn_from_what_was_learned() -> None:
    known = learned(10 * HOUR, gpus=1)
    assert 8 * HOUR < known.lasts(1, "p", "", 0.0, 0.5) < 15 * HOUR
    assert known.lasts(1, "p", "", 12 * HOUR, 0.0) == pytest.approx(12 * HOUR)
    times = [known.lasts(1, "p", "", HOUR, chance / 20) for chance in range(20)]
    assert times == sorted(times)
    assert Learned().lasts(1, "p", "", HOUR, 0.5) == pytest.approx(2 * HOUR, rel=0.2)
    assert known.lasts(1, "p", "", 1e12, 0.5) == 2e12
