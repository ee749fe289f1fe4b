"""Which engines a project may use. Pure; an administrator says it in the server's config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccess:
    by_project: Mapping[str, frozenset[str]] = field(default_factory=dict)
    others: frozenset[str] | None = None  # for projects that are not named; None: all engines

    def of_project(self, project: str) -> frozenset[str] | None:
        """None: all engines there are."""
        return self.by_project.get(project, self.others)

    def of_run(self, project: str, wanted: Sequence[str]) -> frozenset[str] | None:
        """What is left of a run's own wish; empty if nothing is."""
        granted = self.of_project(project)
        if not wanted:
            return granted
        return frozenset(wanted) if granted is None else granted & frozenset(wanted)
