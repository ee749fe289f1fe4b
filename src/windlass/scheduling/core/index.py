"""The order within a project when nobody knows how long runs last: those first of which the most end for the GPU time
that they are given, as far as runs that ended have told (see `learned`).
"""

from __future__ import annotations

from typing import Any

from windlass.scheduling.core.learned import Lasted, Learned
from windlass.scheduling.core.types import Run, Waiting, size

MOST_FRESH = 10_000  # kinds of runs whose rank is kept at hand
RESTART_S = 60.0  # what it takes a waiting run to come back, where nobody knows better

_NOTHING = Learned()
_NOBODY = (None, 0.0)


def rank(run: Run, learned: Any, now: float) -> float:
    """Smaller is sooner. `learned` is a `Learned`; None: nothing is known, and least attained service decides."""
    known = learned if learned is not None else _NOTHING
    if isinstance(run, Waiting):
        served = run.served
        if not served:
            return _fresh_rank(run, known)
        want = run.wants[0]
        gpus = size(want) * want.nodes or 1.0
        found: float = known.rank(gpus, run.project, run.user, served / gpus)
        # What it has to do again before it goes on is spent on it too.
        return found + RESTART_S * gpus
    gpus = size(run.want) * len(run.placement.shares) or 1.0
    known_rank: float = known.rank(gpus, run.project, run.user, run.attained(now) / gpus)
    return known_rank


def _fresh_rank(run: Waiting, known: Learned) -> float:
    """Of one that has not begun: the same for all of its kind that want the same."""
    wants, ranked = known.fresh.get((id(run.wants), run.project, run.user), _NOBODY)
    if wants is not run.wants:
        want = run.wants[0]
        gpus = size(want) * want.nodes or 1.0
        ranked = known.rank(gpus, run.project, run.user, 0.0)
        if len(known.fresh) >= MOST_FRESH:
            known.fresh.clear()
        known.fresh[id(run.wants), run.project, run.user] = (run.wants, ranked)
    return ranked


def lasted(run: Run, now: float) -> Lasted:
    """For `History.learn`."""
    if isinstance(run, Waiting):
        want = run.wants[0]
        gpus = size(want) * want.nodes or 1.0
    else:
        gpus = size(run.want) * len(run.placement.shares) or 1.0
    return Lasted(gpus=gpus, project=run.project, user=run.user, seconds=run.attained(now) / gpus)
