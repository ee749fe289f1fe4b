"""What is said of two things that were measured side by side."""

from __future__ import annotations

import random

import pytest

from bench.pairs import Ratio, Verdict, decide_verdict, ratio_of, trimmed_mean


def ratios(center: float, spread: float, *, seed: int, count: int = 60) -> list[float]:
    source = random.Random(seed)
    return [center * (1 + source.gauss(0, spread)) for _ in range(count)]


def test_windows_that_somebody_else_disturbed_do_not_count() -> None:
    assert trimmed_mean([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1, 9.0]) == 1.0
    assert trimmed_mean([1.0, 2.0, 9.0]) == 2.0


def test_the_interval_is_around_the_ratio_and_grows_with_the_noise() -> None:
    calm = ratio_of([ratios(0.99, 0.005, seed=seed) for seed in range(4)])
    wild = ratio_of([ratios(0.99, 0.1, seed=seed) for seed in range(4)])
    assert calm.least < 0.99 < calm.most
    assert calm.value == pytest.approx(0.99, abs=0.002)
    assert wild.most - wild.least > 5 * (calm.most - calm.least)


def test_groups_that_differ_among_themselves_widen_the_interval() -> None:
    alike = ratio_of([ratios(1.0, 0.01, seed=seed) for seed in range(6)])
    unlike = ratio_of([ratios(1.0 + shift, 0.01, seed=1) for shift in (-0.05, -0.03, 0.0, 0.02, 0.04, 0.06)])
    assert unlike.most - unlike.least > 3 * (alike.most - alike.least)


SAME = Ratio(value=1.0, least=0.998, most=1.002)


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [
        (Ratio(value=0.998, least=0.996, most=0.999), SAME, Verdict.MET),
        (Ratio(value=0.98, least=0.97, most=0.99), SAME, Verdict.MISSED),
        (Ratio(value=0.998, least=0.99, most=1.01), SAME, Verdict.CANNOT_TELL),
        (Ratio(value=0.998, least=0.996, most=0.999), Ratio(value=1.0, least=0.98, most=1.0), Verdict.CANNOT_TELL),
        (Ratio(value=0.998, least=0.996, most=0.999), Ratio(value=1.02, least=1.01, most=1.03), Verdict.CANNOT_TELL),
    ],
)
def test_nothing_is_said_that_cannot_be_told(ratio: Ratio, noise: Ratio, verdict: Verdict) -> None:
    assert decide_verdict(ratio, noise, target=0.995) is verdict


def test_a_gross_miss_is_told_through_any_noise() -> None:
    noise = Ratio(value=1.0, least=0.97, most=1.03)
    assert decide_verdict(Ratio(value=0.8, least=0.79, most=0.81), noise, target=0.995) is Verdict.MISSED
    assert decide_verdict(Ratio(value=0.98, least=0.97, most=0.99), noise, target=0.995) is Verdict.CANNOT_TELL
