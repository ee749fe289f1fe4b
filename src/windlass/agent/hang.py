"""Whether ranks hang: none that told steps has told one for many times as long as it usually takes. Pure, but for
reading what ranks have told.

A rank that never told a step is never judged, unless those before it did. Until a rank's pace is known, and while a
state is loaded, the time is long: compilers, caches and shared disks take minutes at a beginning, and some tell one
step an epoch.
"""

from __future__ import annotations

import os
from typing import Any, Collection, Mapping, NamedTuple

from . import layout
from .progress import NOTHING, Progress, read_progress

AUTO = "auto"
OFF = "off"
FLOOR_S = 600.0  # an evaluation between two steps is no hang, and nobody has told that it is one
FIRST_S = 1800.0
MULTIPLE = 20.0  # of the usual time
PAUSES = 4.0  # of the longest time seen: what happened once happens again, and may grow
_FEW = 3  # steps that say nothing yet: the first ones compile and warm up
_RECENT = 0.2  # how much the newest step counts for what is usual


class Habit(NamedTuple):
    """What is known of a rank's pace."""

    last: Progress = NOTHING
    usual_s: float | None = None
    longest_s: float = 0.0
    first_s: float | None = None  # how long the first step took at most, from the start or from a load
    begun_at: float | None = None  # when its process was started

    def learn(self, told: Progress) -> Habit:
        if self.last.steps == 0 and told.steps > 0 and self.begun_at is not None:
            has_loaded = 0 < told.restored_at <= told.stepped_at
            first_s = told.stepped_at - (max(self.begun_at, told.restored_at) if has_loaded else self.begun_at)
            return self._replace(last=told, first_s=max(self.first_s or 0.0, first_s))
        steps = told.steps - self.last.steps
        if self.last.steps == 0 or steps <= 0 or told.stepped_at < self.last.stepped_at:
            return self._replace(last=told)  # another process of this rank, or nothing new
        span_s = told.stepped_at - self.last.stepped_at
        each_s = span_s / steps
        usual_s = each_s if self.usual_s is None else (1 - _RECENT) * self.usual_s + _RECENT * each_s
        # Of several steps at once the longest is not seen; it is what the others leave, were they usual.
        longest_s = max(self.longest_s, span_s - (steps - 1) * min(each_s, usual_s))
        return self._replace(last=told, usual_s=usual_s, longest_s=longest_s)

    def limit_s(self, fixed_s: float | None) -> float | None:
        """How long it may be without a step; None: it is not to be judged."""
        if self.last.finished_at > 0:
            return None
        learned_s = max(FLOOR_S, MULTIPLE * (self.usual_s or 0.0), PAUSES * self.longest_s)
        first_s = self.first_s or 0.0
        if self.last.steps == 0:
            # One that has loaded a state, but of whose pace nothing is known, may tell a step a day.
            is_awaited = self.last.restored_at > 0 and (self.first_s, self.usual_s, fixed_s) != (None, None, None)
            return max(FIRST_S, fixed_s or 0.0, learned_s, PAUSES * first_s) if is_awaited else None
        if fixed_s is not None:
            return fixed_s
        return max(FIRST_S, learned_s, MULTIPLE * first_s) if self.last.steps < _FEW else learned_s

    def quiet_s(self, now: float) -> float:
        return now - max(self.last.stepped_at, self.last.restored_at)


class Hang(NamedTuple):
    rank: int
    message: str
    quiet_s: float


def decide_hang(habits: Mapping[int, Habit], fixed_s: float | None, *, now: float) -> Hang | None:
    """`habits`: of the ranks that go on. Who is behind is named: the others wait for it."""
    judged = {rank: habit for rank, habit in habits.items() if habit.limit_s(fixed_s) is not None}
    overdue = [rank for rank, habit in judged.items() if habit.quiet_s(now) > (habit.limit_s(fixed_s) or 0.0)]
    if not overdue:
        return None
    first = min(overdue, key=lambda rank: (judged[rank].last.step, rank))
    behind = sorted(rank for rank, habit in judged.items() if habit.last.step <= judged[first].last.step)
    quiet_s, usual_s, step = judged[first].quiet_s(now), judged[first].usual_s, judged[first].last.step
    usually = "" if usual_s is None else ", and one usually takes %.3g s" % usual_s
    where = "%s %s at step %d" % (_ranks(behind), "is" if len(behind) == 1 else "are", step)
    if step < 0:
        where = "%s told none since the start" % _ranks(behind)
    furthest = max(habit.last.step for habit in judged.values())
    others = ", others at step %d" % furthest if len(behind) < len(judged) else ""
    return Hang(behind[0], "no step for %.0f s%s: %s%s" % (quiet_s, usually, where, others), quiet_s)


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return "rank %s" % shown if len(ranks) == 1 else "ranks %s" % shown


class Hangs:
    """What a supervisor has learned of its ranks so far. It outlives them: those that come next have the same pace."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        wanted = plan.get("hang", AUTO)
        self._node_dir = str(plan["node_dir"])
        self._is_off = wanted == OFF
        self._fixed_s = None if wanted in (AUTO, OFF) else float(wanted)
        self._habits: dict[int, Habit] = {}
        self._begun_at: float | None = None  # the ranks, or as good as: they are looked at soon after

    def look(self, now: float, *, ended: Collection[int]) -> Hang | None:
        """`ended`: ranks that are over."""
        if self._is_off:
            return None
        if self._begun_at is None:
            self._begun_at = now
        try:
            names = os.listdir(self._node_dir)
        except OSError:
            return None  # a shared folder that is away for a moment: who cannot be seen is not judged
        for name in names:
            rank = layout.rank_of_progress(name)
            told = NOTHING if rank is None else read_progress(os.path.join(self._node_dir, name))
            if rank is not None and told != NOTHING:
                self._habits[rank] = self._habits.get(rank, Habit(begun_at=self._begun_at)).learn(told)
        going_on = {rank: habit for rank, habit in self._habits.items() if rank not in ended}
        return decide_hang(going_on, self._fixed_s, now=now)

    def begin_again(self, now: float) -> None:
        """Other processes take the places of those there were. They told steps, so that these will."""
        begun = NOTHING._replace(restored_at=now)
        self._begun_at = now
        self._habits = {rank: habit._replace(last=begun, begun_at=now) for rank, habit in self._habits.items()}

    def is_suspicious(self, now: float) -> bool:
        """Whether it is half-way to a hang: then somebody else's verdict may well be about the same."""
        halfway = [(habit.quiet_s(now), habit.limit_s(self._fixed_s)) for habit in self._habits.values()]
        return not self._is_off and any(limit_s is not None and 2 * quiet_s > limit_s for quiet_s, limit_s in halfway)
