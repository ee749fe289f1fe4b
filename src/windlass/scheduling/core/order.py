"""In which order the runs of one project and one priority are considered."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.scheduling.core.types import Policy, Snapshot, Waiting

_Key = tuple[int, float, float, str, Waiting]


class Queue:
    """Runs of one project and one priority, the next first."""

    __slots__ = ("_at", "_runs")

    def __init__(self, runs: list[Waiting]) -> None:
        self._runs = runs
        self._at = 0

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._runs)

    def next(self) -> Waiting | None:
        if self._at >= len(self._runs):
            return None
        self._at += 1
        return self._runs[self._at - 1]


def queues(snapshot: Snapshot, policy: Policy, now: float) -> Iterator[dict[str, Queue]]:
    """For each priority, the highest first, the queues by project."""
    levels: dict[int, dict[str, list[_Key]]] = {}
    rank, learned = policy.rank, snapshot.learned
    for run in snapshot.waiting:
        key = (2, rank(run, learned, now), run.queued_at, run.run_id, run)
        levels.setdefault(run.priority, {}).setdefault(run.project, []).append(key)
    for priority in sorted(levels, reverse=True):
        by_project = levels[priority]
        for keys in by_project.values():
            keys.sort()
        yield {project: Queue([key[4] for key in by_project[project]]) for project in sorted(by_project)}
