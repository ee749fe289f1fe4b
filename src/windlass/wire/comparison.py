"""Runs side by side."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from windlass.wire.runs import Wire


class Topic(StrEnum):
    RUN = "run"
    PARAMS = "params"
    METRICS = "metrics"
    DATA = "data"
    CODE = "code"
    ENVIRONMENT = "environment"
    TAGS = "tags"
    COST = "cost"


class ComparedRun(Wire):
    id: str
    name: str
    state: str
    project: str | None = Field(None, description="null: made by an MLflow client, in no project")


class ComparedRow(Wire):
    """One value of each run, in the order of the runs; null where a run has none."""

    key: str
    values: list[str | float | None]
    differs: bool
    best: int | None = Field(None, description="of metrics whose better end is known: which run is best")


class ComparedTopic(Wire):
    topic: Topic
    rows: list[ComparedRow]


class Comparison(Wire):
    runs: list[ComparedRun]
    topics: list[ComparedTopic]
