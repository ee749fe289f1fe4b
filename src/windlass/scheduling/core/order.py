"""In which order the runs of one project and one priority are considered: by the policy's rank, but for the one that
has waited too long and for those that would miss their deadline.

So that a queue that only grows does not become first come, first served, the old ones' precedence is bounded: nobody
has it while those that had it hold more than their part of the room.
"""

from __future__ import annotations

from collections.abc import Iterable

from windlass.scheduling.core.types import Policy, Running, Snapshot, Waiting, size

AGED_PART = 0.05  # of what a project holds; one run may always
STARVING_PART = 0.025  # of what all hold; one run may always

_OLD, _URGENT, _USUAL = 0, 1, 2
_Key = tuple[int, float, float, str, Waiting]


class Queue:
    """Runs of one project and one priority, the next first."""

    __slots__ = ("_at", "_deferred", "_runs", "settled", "uncovered")

    def __init__(self, runs: list[Waiting]) -> None:
        self._runs = runs
        self._at = 0
        self._deferred: list[Waiting] = []
        self.settled: set[object] = set()  # shapes that this project has no way to start any more in this pass
        self.uncovered: set[object] = set()  # shapes that its quota does not cover

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._runs)

    def next(self) -> Waiting | None:
        if self._at >= len(self._runs):
            return None
        self._at += 1
        return self._runs[self._at - 1]

    def peek(self) -> Waiting:
        return self._runs[self._at]

    def defer(self, run: Waiting) -> None:
        """It is not its turn yet: it has one after `rewind`."""
        self._deferred.append(run)

    def rewind(self) -> None:
        self._runs = self._deferred + self._runs[self._at :]
        self._at = 0
        self._deferred = []


def queues(snapshot: Snapshot, policy: Policy, now: float, old: set[str] | None = None) -> dict[int, dict[str, Queue]]:
    """For each priority, the highest first, the queues by project. `old` is told whom its age has put first."""
    levels: dict[int, dict[str, list[_Key]]] = {}
    rank, learned = policy.rank, snapshot.learned
    old_before = now - policy.ageing_s
    oldest: dict[tuple[int, str], Waiting] = {}
    for run in snapshot.waiting:
        priority, project = run.priority, run.project
        kind, value = _USUAL, 0.0
        if run.deadline is not None and _is_urgent(run, policy, now):
            kind, value = _URGENT, run.deadline
        else:
            value = rank(run, learned, now)
        level = levels.get(priority)
        if level is None:
            level = levels[priority] = {}
        keys = level.get(project)
        if keys is None:
            keys = level[project] = []
        keys.append((kind, value, run.queued_at, run.run_id, run))
        if run.queued_at <= old_before:
            known = oldest.get((priority, project))
            if known is None or (run.queued_at, run.run_id) < (known.queued_at, known.run_id):
                oldest[priority, project] = run
    if oldest:
        first = _put_first(levels, oldest, _room_of_the_old(snapshot.running, policy.ageing_s))
        if old is not None:
            old |= first
    found = {}
    for priority in sorted(levels, reverse=True):
        by_project = levels[priority]
        for keys in by_project.values():
            keys.sort()
        found[priority] = {project: Queue([key[4] for key in by_project[project]]) for project in sorted(by_project)}
    return found


def _put_first(
    levels: dict[int, dict[str, list[_Key]]],
    oldest: dict[tuple[int, str], Waiting],
    held: dict[str, tuple[float, float]],
) -> set[str]:
    found = set()
    for (priority, project), run in oldest.items():
        by_old, by_all = held.get(project, (0.0, 0.0))
        if by_old <= AGED_PART * by_all:
            levels[priority][project].append((_OLD, 0.0, run.queued_at, run.run_id, run))
            found.add(run.run_id)
    return found


def _room_of_the_old(running: Iterable[Running], after_s: float) -> dict[str, tuple[float, float]]:
    """By project: what those hold that had waited for so long, and what all hold."""
    held: dict[str, tuple[float, float]] = {}
    for run in running:
        here = size(run.want) * len(run.placement.shares)
        by_old, by_all = held.get(run.project, (0.0, 0.0))
        is_old = run.waited_s >= after_s
        held[run.project] = (by_old + here if is_old else by_old, by_all + here)
    return held


def _is_urgent(run: Waiting, policy: Policy, now: float) -> bool:
    """Soon it cannot meet its deadline any more; if it cannot now, there is nothing to hurry for."""
    assert run.deadline is not None
    left_s = run.deadline - now - (run.longest_s or 0.0)
    return 0 <= left_s <= policy.urgent_s


def find_starving(snapshot: Snapshot, policy: Policy, now: float) -> list[Waiting]:
    """Those that have waited for so long that they come before everybody, the oldest first."""
    before = now - policy.starving_s
    old = [run for run in snapshot.waiting if run.queued_at <= before]
    if not old:
        return []
    held = _room_of_the_old(snapshot.running, policy.starving_s).values()
    if sum(by_old for by_old, _ in held) > STARVING_PART * sum(by_all for _, by_all in held):
        return []
    return sorted(old, key=lambda run: (run.queued_at, run.run_id))
