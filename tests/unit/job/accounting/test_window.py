"""From measurements to metrics."""

from __future__ import annotations

import pytest

from windlass.job.accounting.intervals import Shares
from windlass.job.accounting.window import Window, Work, decide_every, metrics_of

SHARES = Shares(communication=0.4, overlapped=0.75)


def window(shares: Shares | None = None, data_wait_s: float = 1.0) -> Window:
    return Window(steps=10, seconds=20.0, data_wait_s=data_wait_s, shares=shares, peak_memory_bytes=7)


def test_means_over_the_window() -> None:
    metrics = metrics_of(window(), Work(tokens=4000, samples=8, flops=100.0, peak_flops=200.0))
    assert metrics == pytest.approx(
        {
            "step_s": 2.0,
            "data_wait_s": 0.1,
            "compute_s": 1.9,
            "tokens_per_s": 2000.0,
            "samples_per_s": 4.0,
            "mfu": 0.25,
            "peak_memory_bytes": 7,
        }
    )


def test_before_communication_is_measured_nobody_knows_what_is_compute() -> None:
    shared = Window(steps=1, seconds=2.0, data_wait_s=0.0, shares=None, peak_memory_bytes=7, communicates=True)
    assert "compute_s" not in metrics_of(shared, Work())


def test_the_parts_add_up_to_the_step() -> None:
    metrics = metrics_of(window(SHARES), Work())
    exposed = metrics["communication_s"] * (1 - metrics["overlapped"])
    assert metrics["data_wait_s"] + metrics["compute_s"] + exposed == pytest.approx(metrics["step_s"])
    assert metrics["communication_s"] == pytest.approx(0.8)


def test_without_a_peak_there_is_no_mfu() -> None:
    assert "mfu" not in metrics_of(window(), Work(flops=1.0))


def test_waiting_is_never_more_than_the_step() -> None:
    metrics = metrics_of(window(SHARES, data_wait_s=1000.0), Work())
    assert (metrics["data_wait_s"], metrics["compute_s"]) == (2.0, 0.0)


@pytest.mark.parametrize(("step_s", "every"), [(3.0, 1), (0.5, 1), (0.3, 2), (0.03, 20), (1e-3, 500), (1e-6, 1000)])
def test_logging_happens_about_twice_a_second(step_s: float, every: int) -> None:
    assert decide_every(step_s) == every
