"""One trace on one cluster by several policies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from windlass.simulation.cluster import Cluster
from windlass.simulation.figures import Figures, figures_of, figures_of_ends
from windlass.simulation.policies import CLAIRVOYANT, IN_ONE_QUEUE, find_policy
from windlass.simulation.reference import clairvoyant
from windlass.simulation.replay import Conditions, replay
from windlass.simulation.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    figures: Figures
    times_s: tuple[float, ...]  # of each job, from its submission to its end


def try_policy(
    name: str, trace: Trace, cluster: Cluster, conditions: Conditions, *, told: Callable[[int], None] | None = None
) -> Tried:
    if name == CLAIRVOYANT:
        ends = clairvoyant(trace, cluster.gpus)
        figures = figures_of_ends(name, trace, ends)
    else:
        one_queue = name in IN_ONE_QUEUE
        replayed = replay(trace, cluster, find_policy(name), conditions, told=told, one_queue=one_queue)
        ends = [math.nan if story.ended_at is None else story.ended_at for story in replayed.stories]
        figures = figures_of(name, trace, cluster, replayed)
    return Tried(figures=figures, times_s=tuple(end - job.at for job, end in zip(trace.jobs, ends, strict=True)))
