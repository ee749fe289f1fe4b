"""Which engines a project may use. Pure; an administrator says it in the server's config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WITH_CONTAINERS = ("kubernetes", "slurm")  # types of engines
WITHOUT_PARTS = ("kubernetes", "slurm")  # these hand out whole GPUs only


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccess:
    by_project: Mapping[str, frozenset[str]] = field(default_factory=dict)
    others: frozenset[str] | None = None  # for projects that are not named; None: all engines

    def of_project(self, project: str) -> frozenset[str] | None:
        """None: all engines there are."""
        return self.by_project.get(project, self.others)

    def of_run(
        self,
        project: str,
        wanted: Sequence[str],
        *,
        image: str | None = None,
        gpus: float = 0,
        types: Mapping[str, str],
    ) -> frozenset[str] | None:
        """What is left of a run's own wish; empty if nothing is. `types`: of the engines there are, by name."""
        allowed = self.of_project(project)
        if wanted:
            allowed = frozenset(wanted) if allowed is None else allowed & frozenset(wanted)
        if image is None and not 0 < gpus < 1:
            return allowed
        suited = frozenset(
            name
            for name, type in types.items()
            if (image is None or type in WITH_CONTAINERS) and not (0 < gpus < 1 and type in WITHOUT_PARTS)
        )
        return suited if allowed is None else allowed & suited
