"""Which losses and gradients are sick, and that one alert an episode is raised."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.plan import OnNan
from windlass.job.accounting.anomaly import CALM_STEPS, LEAST_STEPS, MOST_OVERFLOWS, Median, Norms, Watch, decide_stop


def settled(explode: float | None = 30.0) -> Watch:
    watch = Watch(explode)
    for step in range(LEAST_STEPS):
        assert watch.look(step, loss=3.0, grad_norm=1.0) is None
    return watch


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=80), st.integers(1, 20))
def test_the_running_median(values: list[float], size: int) -> None:
    median = Median(size)
    for value in values:
        median.add(value)
    assert median.value == statistics.median_high(values[-size:])
    assert len(median) == min(size, len(values))


@pytest.mark.parametrize(
    ("loss", "norm", "words"),
    [
        (math.nan, 1.0, "step 7: the loss is nan"),
        (math.inf, None, "step 7: the loss is inf"),
        (1.0, math.nan, "step 7: the gradient's norm is nan"),
        (None, math.inf, "step 7: the gradient's norm is inf"),
    ],
)
def test_what_is_no_number_is_found_from_the_first_step_on(loss: float | None, norm: float | None, words: str) -> None:
    finding = Watch(None).look(7, loss=loss, grad_norm=norm)
    assert finding is not None
    assert (finding.kind, finding.message, finding.new_episode) == ("nan", words, True)


def test_an_explosion_is_many_times_the_usual() -> None:
    watch = settled()
    assert watch.look(51, loss=3.0, grad_norm=29.0) is None
    finding = watch.look(52, loss=3.0, grad_norm=31.0)
    assert finding is not None
    assert (finding.kind, finding.message) == ("exploded", "step 52: the gradient's norm is 31, and 1 is usual")
    assert settled(explode=None).look(51, loss=1e9, grad_norm=1e9) is None


def test_before_anything_is_usual_nothing_explodes() -> None:
    assert Watch(30.0).look(1, loss=1e9, grad_norm=1e9) is None


def test_a_loss_explodes_only_above_where_it_began() -> None:
    watch = Watch(30.0)
    for step in range(LEAST_STEPS + 128):
        watch.look(step, loss=5.0 if step < LEAST_STEPS else 0.01, grad_norm=None)
    assert watch.look(300, loss=4.0, grad_norm=None) is None  # 400 times the usual, and still not alarming
    finding = watch.look(301, loss=5.5, grad_norm=None)
    assert finding is not None
    assert finding.kind == "exploded"


def test_one_alert_an_episode() -> None:
    watch = settled()
    found = []
    for step in range(400):
        sick = step in (10, 11, 30, 30 + CALM_STEPS, 300)
        found.append(watch.look(step, loss=math.nan if sick else 3.0, grad_norm=1.0))
    starts = [finding.step for finding in found if finding is not None and finding.new_episode]
    assert starts == [10, 300]  # the others came before the loop had been calm for long enough


def test_a_sick_step_does_not_become_usual() -> None:
    watch = settled()
    for step in range(200):
        assert watch.look(step, loss=3.0, grad_norm=1000.0) is not None


def test_overflows_belong_to_a_loss_scale_unless_they_never_end() -> None:
    watch = Watch(30.0)
    found = [watch.look(step, loss=1.0, grad_norm=math.inf, scaled=True) for step in range(MOST_OVERFLOWS + 1)]
    assert found[:-1] == [None] * MOST_OVERFLOWS
    assert found[-1] is not None
    assert "whatever the loss scale" in found[-1].message


def test_only_stop_stops() -> None:
    finding = Watch(None).look(1, loss=math.nan, grad_norm=None)
    assert finding is not None
    assert decide_stop(finding, OnNan.GO_ON) is None
    assert decide_stop(finding, OnNan.SKIP) is None
    error = decide_stop(finding, OnNan.STOP)
    assert error is not None
    assert str(error) == "step 1: the loss is nan"
    assert error.hint is not None
    assert "on_nan=stop" in error.hint


def test_a_norm_that_was_looked_at_before_its_step_is_not_looked_at_again() -> None:
    watch, norms = Watch(30.0), Norms()
    found = watch.look_at_norm(7, math.nan, norms)
    assert found is not None
    assert (found.message, found.new_episode) == ("step 7: the gradient's norm is nan", True)
    assert watch.look(5, loss=1.0, grad_norm=math.nan) is None
    again = watch.look(7, loss=math.nan, grad_norm=math.nan)
    assert again is not None
    assert (again.message, again.new_episode) == ("step 7: the loss is nan", False)  # one episode, of one step
    assert watch.look(8, loss=1.0, grad_norm=math.nan) is not None


def test_every_optimizer_has_norms_of_its_own() -> None:
    watch, small, large = Watch(30.0), Norms(), Norms()
    for step in range(200):
        assert watch.look_at_norm(step, 1.0, small) is None
        assert watch.look_at_norm(step, 1000.0, large) is None
    assert watch.look_at_norm(200, 1000.0, small) is not None
