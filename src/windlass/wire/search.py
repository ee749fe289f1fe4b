"""Runs that are searched for: with params, metrics and tags."""

from __future__ import annotations

from pydantic import Field

from windlass.wire.runs import Wire


class FoundRun(Wire):
    id: str
    name: str
    state: str
    project: str
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
    metrics: dict[str, float | str] = Field(description="the newest values; nan, inf and -inf are text")
    tags: dict[str, str]


class FoundPage(Wire):
    runs: list[FoundRun]
    next_cursor: str | None = None
