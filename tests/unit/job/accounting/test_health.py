"""What follows a sick step: it is applied, skipped or the end, and told of once."""

from __future__ import annotations

import math

import pytest

from windlass.core.plan import OnNan
from windlass.job.accounting.anomaly import LEAST_STEPS, MOST_SKIPPED, Norms, SickStep
from windlass.job.accounting.health import Health


class Told:
    def __init__(self) -> None:
        self.alerts: list[tuple[str, str, int]] = []
        self.once = False

    def __call__(self, kind: str, message: str, *, step: int, once: bool) -> None:
        self.alerts.append((kind, message, step))
        self.once = once


def settled(policy: OnNan, *, is_main: bool = True) -> tuple[Health, Norms, Told]:
    told, norms = Told(), Norms()
    health = Health(policy, alert=told, is_main=is_main)
    for health.done in range(LEAST_STEPS):
        assert health.applies(1.0, norms)
    health.done = LEAST_STEPS
    return health, norms, told


@pytest.mark.parametrize("norm", [math.nan, math.inf, 31.0])
def test_a_step_that_explodes_is_skipped_as_one_that_is_no_number(norm: float) -> None:
    health, norms, told = settled(OnNan.SKIP)
    assert not health.applies(norm, norms)
    assert [step for _, _, step in told.alerts] == [51]
    health.done = 51
    assert health.applies(1.0, norms)


@pytest.mark.parametrize(("norm", "words"), [(math.nan, "the gradient's norm is nan"), (31.0, "is 31, and 1 is usual")])
def test_both_stop_with_one_error(norm: float, words: str) -> None:
    health, norms, told = settled(OnNan.STOP)
    with pytest.raises(SickStep) as stopped:
        health.applies(norm, norms)
    assert str(stopped.value).startswith("step 51: ")
    assert words in str(stopped.value)
    assert len(told.alerts) == 1


@pytest.mark.parametrize("is_main", [True, False])
def test_whoever_stops_has_told_before(is_main: bool) -> None:
    """The first one may be ended by another's stop before it comes to its own."""
    health, norms, told = settled(OnNan.STOP, is_main=is_main)
    with pytest.raises(SickStep):
        health.applies(math.nan, norms)
    assert told.alerts == [("nan", "step 51: the gradient's norm is nan", 51)]
    assert told.once
    health, norms, told = settled(OnNan.STOP, is_main=is_main)
    assert health.judge(51, loss=math.nan, grad_norm=None, scaled=False) is not None
    assert [kind for kind, _, _ in told.alerts] == ["nan"]


@pytest.mark.parametrize("policy", [OnNan.GO_ON, OnNan.SKIP])
def test_who_goes_on_leaves_telling_to_the_first(policy: OnNan) -> None:
    health, norms, told = settled(policy, is_main=False)
    health.applies(math.nan, norms)
    assert told.alerts == []


def test_optimizer_and_meter_raise_one_alert_together() -> None:
    health, norms, told = settled(OnNan.SKIP)
    assert not health.applies(math.nan, norms)
    health.done = 51
    assert health.judge(51, loss=math.nan, grad_norm=math.nan, scaled=False) is not None
    assert told.alerts == [("nan", "step 51: the gradient's norm is nan", 51)]


def test_gradients_that_stay_large_are_not_skipped_for_ever() -> None:
    health, norms, _ = settled(OnNan.SKIP)
    assert [health.applies(100.0, norms) for _ in range(MOST_SKIPPED + 2)] == [False] * MOST_SKIPPED + [True, True]
    assert not health.applies(math.nan, norms)


def test_who_goes_on_applies_everything() -> None:
    health, norms, told = settled(OnNan.GO_ON)
    assert health.applies(100.0, norms)
    assert [kind for kind, _, _ in told.alerts] == ["exploded"]
