"""Who gets what, as an administrator writes it: a project's share, quota and limits, and the `scheduling` section."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from windlass.core.quantities import parse_duration, parse_size
from windlass.wire.checkpoints import CheckpointSpec
from windlass.wire.gang import problem_at
from windlass.wire.strict import StrictModel

Seconds = Annotated[float, BeforeValidator(parse_duration)]
Amount = Annotated[float, Field(ge=0, le=2**60, allow_inf_nan=False)]
EngineName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]
_RESOURCE = re.compile(r"^(gpu|tpu|cpu|memory|[gt]pu:[A-Za-z0-9][A-Za-z0-9._-]{0,62})$")
_KNOWN = "gpu, gpu:TYPE (such as gpu:h100), tpu, tpu:TYPE (such as tpu:v5e), cpu, memory"


def _in_bytes(amounts: Any) -> Any:
    """`memory: 1TB` becomes its bytes."""
    if isinstance(amounts, Mapping) and "memory" in amounts:
        return {**amounts, "memory": parse_size(amounts["memory"])}
    return amounts


def _names_resources(amounts: dict[str, float]) -> dict[str, float]:
    for name in amounts:
        if not _RESOURCE.match(name):
            also = "; `runs` is for limits" if name == "runs" else ""
            raise ValueError(f"unknown resource {name!r}; known: {_KNOWN}{also}")
    return amounts


def _names_limits(amounts: dict[str, float]) -> dict[str, float]:
    for name in amounts:
        if name != "runs" and not _RESOURCE.match(name):
            raise ValueError(f"unknown resource {name!r}; known: {_KNOWN}, runs")
    return amounts


Quota = Annotated[dict[str, Amount], BeforeValidator(_in_bytes), AfterValidator(_names_resources)]
Limit = Annotated[dict[str, Amount], BeforeValidator(_in_bytes), AfterValidator(_names_limits)]


class ProjectSection(StrictModel):
    """What one project may use, and what its runs do unless they say otherwise."""

    engines: tuple[EngineName, ...] = Field((), description="the engines its runs may go to; default as for others")
    parent: str | None = Field(None, description="the project that it is a part of, and shares with")
    weight: float = Field(1.0, gt=0, le=1e6, description="of its share beside the other parts of its parent")
    quota: Quota = Field(
        default_factory=dict,
        description="guaranteed to it and its parts: {gpu: 16, gpu:h100: 8, cpu: 64, memory: 1TB}",
    )
    limit: Limit = Field(default_factory=dict, description="never more at once; as `quota`, and `runs`")
    max_queued: int | None = Field(None, ge=0, description="how many of its runs may wait; more are refused")
    checkpoint: CheckpointSpec | None = Field(
        None, description="as in specs, for what a spec of the project does not say: {store: s3://…, encrypt: true}"
    )


class SchedulingSection(StrictModel):
    """In which order runs start, and who is stopped for whom; docs/scheduling.md explains it."""

    policy: Literal["windlass", "fifo", "backfill", "least-attained", "no-preemption"] = Field(
        "windlass",
        description="windlass, fifo, backfill, least-attained or no-preemption; `windlass simulate` compares them",
    )
    preempt: bool = Field(True, description="whether runs are stopped to make room for others; they go on later")
    half_life: Seconds = Field(
        604_800.0, gt=0, description="what a project has used counts half after so long, in its share (7 days)"
    )
    min_run: Seconds = Field(300.0, description="nobody is stopped sooner after its start; doubles each time")
    ageing: Seconds = Field(86_400.0, gt=0, description="one that has waited for so long comes first in its project")
    starving: Seconds = Field(259_200.0, gt=0, description="one that has waited for so long comes before all (3 days)")
    user_limit: Limit = Field(
        default_factory=dict, description="what one user has at once at most, e.g. {gpu: 8, runs: 10}"
    )
    max_queued: int | None = Field(None, ge=0, description="how many runs may wait in all; more are refused")
    max_queued_per_user: int | None = Field(None, ge=0, description="how many runs of one user may wait")


def check_projects(projects: Mapping[str, ProjectSection]) -> None:
    """Raises for parents that are not there or go round in a circle, and for quotas that a limit makes void."""
    for name, project in projects.items():
        if project.parent is not None and project.parent not in projects:
            known = ", ".join(sorted(set(projects) - {name})) or "none"
            raise problem_at(
                ("projects", name, "parent"), f"there is no project '{project.parent}'; named here: {known}"
            )
        above = list(_line_of(name, projects))
        if above[-1] in above[:-1]:
            raise problem_at(("projects", name, "parent"), f"goes round in a circle: {' → '.join(above)}")
        for owner in above:
            for resource, most in projects[owner].limit.items():
                _check_quota(name, project.quota, owner, resource, most)


def _line_of(name: str, projects: Mapping[str, ProjectSection]) -> Iterator[str]:
    """It, its parent and so on; one that comes again is the last."""
    seen: set[str] = set()
    here: str | None = name
    while here is not None:
        yield here
        if here in seen:
            return
        seen.add(here)
        here = projects[here].parent if here in projects else None


def _check_quota(name: str, quota: Mapping[str, float], owner: str, resource: str, most: float) -> None:
    """A limit of GPUs holds for those of each type too, and one of TPUs for theirs."""
    for guaranteed, amount in quota.items():
        is_under = guaranteed == resource or (resource in ("gpu", "tpu") and guaranteed.startswith(f"{resource}:"))
        if is_under and amount > most:
            whose = "its own limit" if owner == name else f"the limit of {owner}"
            raise problem_at(
                ("projects", name, "quota"),
                f"guarantees {guaranteed}: {amount:g}, and {whose} is {resource}: {most:g}",
            )
