"""From what was measured over some steps to the metrics that are logged of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.job.accounting.intervals import Shares

LEAST_WINDOW_S = 0.5
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one step is, of all processes together; None where it is not known."""

    tokens: int | None = None
    samples: int | None = None
    flops: float | None = None
    peak_flops: float | None = None  # a second, of all devices together


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some steps in a row, without pauses."""

    steps: int
    seconds: float
    data_wait_s: float
    shares: Shares | None  # of the last step whose communication was measured; None: there is none, or not yet
    communicates: bool = False  # there is some
    peak_memory_bytes: int


def metrics_of(window: Window, work: Work) -> dict[str, float]:
    """Means over the window. `data_wait_s`, `compute_s` and the communication that is not hidden add up to `step_s`;
    before communication has been measured nobody knows how the rest divides."""
    step_s = window.seconds / window.steps
    data_wait_s = min(step_s, window.data_wait_s / window.steps)
    busy_s = step_s - data_wait_s
    metrics = {"step_s": step_s, "data_wait_s": data_wait_s, "peak_memory_bytes": float(window.peak_memory_bytes)}
    if window.shares is None:
        if not window.communicates:
            metrics["compute_s"] = busy_s
    else:
        metrics["compute_s"] = max(0.0, busy_s - window.shares.exposed * step_s)
        metrics["communication_s"] = window.shares.communication * step_s
        metrics["overlapped"] = window.shares.overlapped
    if step_s > 0:
        if work.tokens:
            metrics["tokens_per_s"] = work.tokens / step_s
        if work.samples:
            metrics["samples_per_s"] = work.samples / step_s
        if work.flops and work.peak_flops:
            metrics["mfu"] = work.flops / step_s / work.peak_flops
    return metrics


def decide_every(step_s: float) -> int:
    """After how many steps to log, so that it happens at most about twice a second.

    Round numbers: two runs of different speed have logged steps in common.
    """
    return next((size for size in _SIZES if size * step_s >= LEAST_WINDOW_S), _SIZES[-1])
