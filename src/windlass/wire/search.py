"""Runs that are searched for: with params, metrics and tags; and the names of what is known of a run."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from windlass.core.errors import InvalidInput
from windlass.core.names import unknown
from windlass.wire.figures import Figure
from windlass.wire.runs import Wire

FACTS = (
    "id",
    "name",
    "state",
    "project",
    "experiment",
    "user",
    "submitted_at",
    "started_at",
    "ended_at",
    "duration_s",
    "attempts",
    "cost_usd",
    "gpu_hours",
    "cpu_hours",
    "note",
)
# Short names that go everywhere that the long ones do, and the other way round.
SHORT: Mapping[str, str] = {
    "submitted": "submitted_at",
    "started": "started_at",
    "ended": "ended_at",
    "duration": "duration_s",
    "cost": "cost_usd",
}
LONG: Mapping[str, str] = {long: short for short, long in SHORT.items()}
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("metric", "metrics"), "metrics"),
    **dict.fromkeys(("param", "params", "parameter", "parameters"), "params"),
    **dict.fromkeys(("tag", "tags"), "tags"),
}


class FoundRun(Wire):
    id: str
    name: str
    state: str
    project: str
    experiment: str | None = None
    user: str | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    attempts: int | None = Field(None, description="null: made by an MLflow client; so the next ones")
    cost_usd: float | None = None
    gpu_hours: float | None = None
    cpu_hours: float | None = None
    note: str | None = None
    params: dict[str, str]
    metrics: dict[str, Figure] = Field(description="the newest values")
    tags: dict[str, str]

    @property
    def word(self) -> str:
        return self.state

    @property
    def duration_s(self) -> float | None:
        """None too where a client says that the end was before the start."""
        if self.ended_at is None or self.started_at is None or self.ended_at < self.started_at:
            return None
        return self.ended_at - self.started_at


class FoundPage(Wire):
    runs: list[FoundRun]
    next_cursor: str | None = None
    named: list[str] = Field(default_factory=list, description="columns that the search and its order are about")
    remarks: list[str] = Field(default_factory=list, description="names in the search that no run has")


def column_of(name: str) -> str:
    """The column of tables that a name in a search means: `cost_usd` of `cost`. Raises InvalidInput."""
    kind, dot, key = name.partition(".")
    if dot and kind in _KINDS:
        quoted = len(key) > 1 and key[0] == key[-1] and key[0] in "`\"'"
        return f"{_KINDS[kind]}.{key[1:-1] if quoted else key}"
    if name == "group":
        return "tags.group"
    if (fact := SHORT.get(name, name)) in FACTS:
        return fact
    known = [LONG.get(fact, fact) for fact in FACTS] + ["group"]
    raise InvalidInput(unknown("column", name, known), hint="metrics.NAME, params.NAME and tags.NAME go too")
