"""What a replay comes to, in numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from windlass.simulation.cluster import Cluster
from windlass.simulation.replay import Replayed
from windlass.simulation.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Times in seconds, from the submission of a job to its end; waiting is all of that in which it does not run."""

    policy: str
    mean_s: float
    median_s: float
    p95_s: float
    p99_s: float
    waiting_s: float  # mean
    utilisation: float | None = None  # of the GPUs while jobs are submitted
    fairness: float | None = None  # Jain's index over what projects got of what was due to them; 1: all alike
    share_error: float | None = None  # the largest of a project, as a part of what was due to it
    preemptions: int = 0
    lost_gpu_hours: float = 0.0
    usd: float | None = None


def percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def jain(values: Sequence[float]) -> float:
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else 1.0


def figures_of_ends(policy: str, trace: Trace, ends: Iterable[float]) -> Figures:
    """Of an order that did not go through the scheduler."""
    times = [end - job.at for job, end in zip(trace.jobs, ends, strict=True)]
    ordered = sorted(times)
    return Figures(
        policy=policy,
        mean_s=statistics.fmean(ordered),
        median_s=statistics.median(ordered),
        p95_s=percentile(ordered, 0.95),
        p99_s=percentile(ordered, 0.99),
        waiting_s=statistics.fmean(time - job.seconds for job, time in zip(trace.jobs, times, strict=True)),
    )


def figures_of(policy: str, trace: Trace, cluster: Cluster, replayed: Replayed) -> Figures:
    stories = replayed.stories
    times = figures_of_ends(policy, trace, (story.ended_at or math.nan for story in stories))
    ratios = [each.got / each.due for each in replayed.contention.values() if each.due > 0]
    lost = math.fsum(story.lost_gpu_s for story in stories) / 3600
    used = math.fsum(story.job.seconds * story.gpus for story in stories) / 3600 + lost
    return Figures(
        policy=policy,
        mean_s=times.mean_s,
        median_s=times.median_s,
        p95_s=times.p95_s,
        p99_s=times.p99_s,
        waiting_s=times.waiting_s,
        utilisation=_utilisation(replayed, trace.span_s),
        fairness=jain(ratios) if ratios else None,
        share_error=max(abs(ratio - 1.0) for ratio in ratios) if ratios else None,
        preemptions=sum(story.preemptions for story in stories),
        lost_gpu_hours=lost,
        usd=used * cluster.usd_per_gpu_hour if cluster.usd_per_gpu_hour else None,
    )


def _utilisation(replayed: Replayed, until: float) -> float | None:
    if until <= 0:
        return None
    moments = [*replayed.busy, (max(until, replayed.busy[-1][0]), 0, 0)]
    spent = 0.0
    for (start, busy, _), (end, _, _) in pairwise(moments):
        spent += busy * max(0.0, min(end, until) - start)
    return spent / (replayed.gpus * until)
