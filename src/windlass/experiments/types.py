"""What experiments, tracked runs and logged models are, as the rest of the package hands them around."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

RUN_NAME = "mlflow.runName"
NOTE = "mlflow.note.content"
DATASET_CONTEXT = "mlflow.data.context"
LARGEST = 1.7976931348623157e308  # what MLflow's SQL store answers for an infinity


class Stage(StrEnum):
    ACTIVE = "active"
    DELETED = "deleted"


class View(StrEnum):
    """Which stages a search looks at."""

    ACTIVE_ONLY = "ACTIVE_ONLY"
    DELETED_ONLY = "DELETED_ONLY"
    ALL = "ALL"

    @property
    def stages(self) -> tuple[Stage, ...]:
        if self is View.ALL:
            return (Stage.ACTIVE, Stage.DELETED)
        return (Stage.ACTIVE,) if self is View.ACTIVE_ONLY else (Stage.DELETED,)


class RunStatus(StrEnum):
    RUNNING = "RUNNING"
    SCHEDULED = "SCHEDULED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


class Pair(NamedTuple):
    """A tag or a param."""

    key: str
    value: str


class Metric(NamedTuple):
    """A point of a metric as a client sends it."""

    key: str
    value: float
    at_ms: int
    step: int
    model_id: str | None = None
    dataset_name: str | None = None
    dataset_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    id: int
    name: str
    artifact_location: str
    stage: str
    created_ms: int
    updated_ms: int
    tags: Sequence[Pair] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    id: str
    experiment_id: int
    name: str
    user: str
    status: str
    start_ms: int | None
    end_ms: int | None
    stage: str
    artifact_uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    name: str
    digest: str
    source_type: str
    source: str
    schema: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInput:
    dataset: Dataset
    tags: Sequence[Pair] = ()


class ModelOutput(NamedTuple):
    model_id: str
    step: int


class LatestMetric(NamedTuple):
    key: str
    value: float
    at_ms: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    info: RunInfo
    metrics: Sequence[LatestMetric] = ()
    params: Sequence[Pair] = ()
    tags: Sequence[Pair] = ()
    datasets: Sequence[DatasetInput] = ()
    model_inputs: Sequence[str] = ()
    model_outputs: Sequence[ModelOutput] = ()


class DatasetSummary(NamedTuple):
    experiment_id: int
    name: str
    digest: str
    context: str | None


class ModelMetric(NamedTuple):
    key: str
    value: float
    at_ms: int
    step: int
    model_id: str
    run_id: str
    dataset_name: str | None
    dataset_digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedModel:
    id: str
    experiment_id: int
    name: str
    artifact_location: str
    created_ms: int
    updated_ms: int
    status: int
    stage: str
    model_type: str | None
    source_run_id: str | None
    status_message: str | None
    params: Sequence[Pair] = ()
    tags: Sequence[Pair] = ()
    metrics: Sequence[ModelMetric] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """What a client says of a run that it begins."""

    experiment_id: str
    name: str = ""
    user: str = ""
    start_ms: int = 0
    tags: Sequence[Pair] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModel:
    experiment_id: str
    name: str | None = None
    source_run_id: str | None = None
    model_type: str | None = None
    params: Sequence[Pair] = ()
    tags: Sequence[Pair] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOrder:
    field: str
    ascending: bool = True
    dataset_name: str | None = None
    dataset_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetChoice:
    name: str
    digest: str | None = None


def as_map(pairs: Sequence[Pair]) -> Mapping[str, str]:
    return {pair.key: pair.value for pair in pairs}
