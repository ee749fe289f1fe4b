"""How long runs last, learned from those that ended: for each kind of run, how likely one that has lasted so long is to
end before it has lasted a little longer. From that, the rank by which runs are served.

A kind is a size, a project and a user. Where a kind has few runs, the kinds above it are believed; where there are none
at all, this: a run that has lasted for some time lasts for as long again with probability one half. Ranked by that
alone, runs are served by least attained service.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

STEPS = 2  # in a doubling of the time that a run has lasted
FIRST_S = 30.0  # the first step: what is shorter is not told apart
COUNT = 44  # steps, to four years
BELIEF = 5.0  # so many runs' worth the kinds above count for
DOUBT = 2.0  # and, at the root, the assumption about which nothing is known
ENDS = 1.0 - 2.0 ** (-1.0 / STEPS)  # that assumption

EDGES: tuple[float, ...] = (0.0, *(FIRST_S * 2.0 ** (step / STEPS) for step in range(COUNT)))

Kind = tuple[object, ...]  # (), (size,), (size, project), (size, project, user)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasted:
    """A run, as far as it is known: `gpus` in all its nodes (runs without any have a size too), and its time so far."""

    gpus: float
    project: str
    user: str = ""
    seconds: float


def step_of(seconds: float) -> int:
    """In which step of its life a run is that has lasted so long."""
    if seconds < FIRST_S:
        return 0
    return min(COUNT - 1, int(math.log2(seconds / FIRST_S) * STEPS) + 1)


def kind_of(gpus: float, project: str, user: str) -> Kind:
    """Sizes by doublings: twelve GPUs and eight are alike, and every kind is to have some runs."""
    octave = math.frexp(gpus)[1]
    return (octave, project, user) if user else (octave, project)


class History:
    """Counts of runs that ended. Grows by one count for each kind that a run is of; forgets nothing."""

    def __init__(self) -> None:
        self._ended: dict[Kind, list[int]] = {(): [0] * COUNT}
        self.count = 0

    def add(self, run: Lasted) -> None:
        _count(self._ended, run)
        self.count += 1

    def learn(self, going: Iterable[Lasted] = ()) -> Learned:
        """As of now. `going` are runs that began and have not ended: they tell that runs last at least so long."""
        still: dict[Kind, list[int]] = {}
        for run in going:
            _count(still, run)
        return Learned(ended={kind: tuple(counts) for kind, counts in self._ended.items()}, still=still)


def _count(counts: dict[Kind, list[int]], run: Lasted) -> None:
    step = step_of(run.seconds)
    kind = kind_of(run.gpus, run.project, run.user)
    for length in range(len(kind) + 1):
        of_kind = counts.get(kind[:length])
        if of_kind is None:
            of_kind = counts[kind[:length]] = [0] * COUNT
        of_kind[step] += 1


class Learned:
    """What was learned until some moment. The tables are made when they are first asked for; the answers are fixed."""

    def __init__(
        self, *, ended: dict[Kind, tuple[int, ...]] | None = None, still: dict[Kind, list[int]] | None = None
    ) -> None:
        self._ended = ended or {}
        self._still = still or {}
        self._odds: dict[Kind, list[float]] = {}
        self._tables: dict[Kind, list[float]] = {}
        self._kinds: dict[tuple[float, str, str], list[float]] = {}
        # By identity of wants, project and user: these wants, and the rank of runs that have not begun.
        self.fresh: dict[tuple[int, str, str], tuple[object, float]] = {}
        self._worn: dict[tuple[float, str, str], list[float]] = {}

    def rank(self, gpus: float, project: str, user: str, seconds: float) -> float:
        """GPU-seconds to be spent on such a run for each run that ends, if it is served for as long as is worth it."""
        table = self._kinds.get((gpus, project, user))
        if table is None:
            table = self._kinds[gpus, project, user] = self._table(kind_of(gpus, project, user))
        if seconds <= 0:
            return table[0] * gpus
        step = step_of(seconds)
        if step >= COUNT - 1:
            return table[-1] * gpus
        low, high = float(EDGES[step]), float(EDGES[step + 1])
        part = min(1.0, max(0.0, (seconds - low) / (high - low)))  # rounding may put it just outside
        return (table[step] * (1.0 - part) + table[step + 1] * part) * gpus

    def lasts(self, gpus: float, project: str, user: str, seconds: float, chance: float) -> float:
        """How long in all a run that has lasted so long lasts at most, with this chance (from 0 to below 1)."""
        worn = self._worn.get((gpus, project, user))
        if worn is None:
            worn = self._worn[gpus, project, user] = _wear(self._odds_of(kind_of(gpus, project, user)))
        step = step_of(seconds)
        if step >= COUNT - 1:
            return seconds / (1.0 - chance)
        part = min(1.0, max(0.0, (seconds - EDGES[step]) / (EDGES[step + 1] - EDGES[step])))
        at = worn[step] + part * (worn[step + 1] - worn[step]) - math.log1p(-chance)
        then = bisect_right(worn, at) - 1
        if then >= COUNT - 1:
            return max(seconds, EDGES[COUNT - 1])
        part = (at - worn[then]) / (worn[then + 1] - worn[then])
        return max(seconds, EDGES[then] + part * (EDGES[then + 1] - EDGES[then]))

    def _table(self, kind: Kind) -> list[float]:
        while kind and kind not in self._ended and kind not in self._still:
            kind = kind[:-1]
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = _rank_steps(self._odds_of(kind))
        return table

    def _odds_of(self, kind: Kind) -> list[float]:
        """For each step, how likely a run that has come so far ends in it."""
        odds = self._odds.get(kind)
        if odds is not None:
            return odds
        above = self._odds_of(kind[:-1]) if kind else [ENDS] * COUNT
        weight = BELIEF if kind else DOUBT
        ended = self._ended.get(kind)
        still = self._still.get(kind)
        odds = list(above)
        came = 0  # those that came to the end of the step
        for step in range(COUNT - 1, -1, -1):
            here = ended[step] if ended else 0
            odds[step] = (here + weight * above[step]) / (came + here + weight)
            came += here + (still[step] if still else 0)
        self._odds[kind] = odds
        return odds


def _wear(odds: list[float]) -> list[float]:
    """At the beginning of each step: the logarithm of how few come so far, which is added up over a run's life."""
    worn = [0.0]
    for ends in odds[:-1]:
        worn.append(worn[-1] - math.log1p(-min(ends, 1.0 - 1e-12)))
    return worn


def _rank_steps(odds: list[float]) -> list[float]:
    """For a run at the beginning of each step: the least time for each run that ends, over all times to serve it.

    This is the inverse of Gittins's index.
    """
    table = []
    for start in range(COUNT - 1):
        left, ended, spent, best = 1.0, 0.0, 0.0, math.inf
        for step in range(start, COUNT - 1):
            length, ends = EDGES[step + 1] - EDGES[step], odds[step]
            spent += left * length * (1.0 - 0.5 * ends)
            ended += left * ends
            left *= 1.0 - ends
            best = min(best, spent / ended)
        table.append(best)
    table.append(table[-1])
    return table
