"""Experiments, runs and models as MLflow's clients read them: the JSON of its protobuf messages, absent fields left
out. Infinities become the largest numbers there are, since that is what its own server answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import copysign, isfinite, isnan
from typing import Any

from windlass.api.mlflow.jsontext import json_text
from windlass.experiments.history import HistoryPoint
from windlass.experiments.types import (
    LARGEST,
    DatasetInput,
    Experiment,
    LoggedModel,
    ModelMetric,
    Pair,
    RunInfo,
    TrackedRun,
)

MODEL_STATUSES = (
    "LOGGED_MODEL_STATUS_UNSPECIFIED",
    "LOGGED_MODEL_PENDING",
    "LOGGED_MODEL_READY",
    "LOGGED_MODEL_UPLOAD_FAILED",
)


def experiment_answer(experiment: Experiment) -> dict[str, Any]:
    answer = {
        "experiment_id": str(experiment.id),
        "name": experiment.name,
        "artifact_location": experiment.artifact_location,
        "lifecycle_stage": experiment.stage,
        "creation_time": experiment.created_ms,
        "last_update_time": experiment.updated_ms,
        "tags": pairs(experiment.tags),
    }
    return _without_empty(answer, "creation_time", "last_update_time", "tags")


def run_answer(run: TrackedRun) -> dict[str, Any]:
    metrics = [
        {"key": key, "value": value if isfinite(value) else number(value), "timestamp": at_ms, "step": step}
        for key, value, at_ms, step in run.metrics
    ]
    data = {"metrics": metrics, "params": pairs(run.params), "tags": pairs(run.tags)}
    inputs = {
        "dataset_inputs": [_input(one) for one in run.datasets],
        "model_inputs": [{"model_id": model_id} for model_id in run.model_inputs],
    }
    outputs = {"model_outputs": [{"model_id": model_id, "step": step} for model_id, step in run.model_outputs]}
    return {
        "data": _without_empty(data, *data),
        "info": info_answer(run.info),
        "inputs": _without_empty(inputs, *inputs),
        "outputs": _without_empty(outputs, *outputs),
    }


def info_answer(info: RunInfo) -> dict[str, Any]:
    answer = {
        "run_id": info.id,
        "run_uuid": info.id,
        "run_name": info.name,
        "experiment_id": str(info.experiment_id),
        "user_id": info.user,
        "status": info.status,
        "start_time": info.start_ms or 0,
        "end_time": info.end_ms,
        "artifact_uri": info.artifact_uri,
        "lifecycle_stage": info.stage,
    }
    return _without_empty(answer, "end_time")


def model_answer(model: LoggedModel) -> dict[str, Any]:
    info = {
        "model_id": model.id,
        "experiment_id": str(model.experiment_id),
        "name": model.name,
        "artifact_uri": model.artifact_location,
        "creation_timestamp_ms": model.created_ms,
        "last_updated_timestamp_ms": model.updated_ms,
        "status": MODEL_STATUSES[model.status],
        "status_message": model.status_message,
        "model_type": model.model_type,
        "source_run_id": model.source_run_id,
        "tags": pairs(model.tags),
    }
    data = {"params": pairs(model.params), "metrics": [_model_metric(metric) for metric in model.metrics]}
    return {
        "info": {key: value for key, value in info.items() if value is not None and value != []},
        "data": _without_empty(data, *data),
    }


def points_answer(points: Iterable[HistoryPoint], *, with_run: bool) -> list[dict[str, Any]]:
    answer = []
    for run_id, key, value, at_ms, step in points:
        point = {"key": key, "value": number(value), "timestamp": at_ms, "step": step}
        if with_run:
            point["run_id"] = run_id
        answer.append(point)
    return answer


def history_text(pages: Iterable[Iterable[HistoryPoint]]) -> Iterator[bytes]:
    """A history of any length as JSON, of which never more than a page is there at once."""
    before = b'{"metrics":['
    for page in pages:
        if points := points_answer(page, with_run=False):
            yield before + json_text(points)[1:-1]
            before = b","
    yield b'{"metrics":[]}' if before != b"," else b"]}"


def page_answer(name: str, found: Sequence[Any], token: str | None) -> dict[str, Any]:
    answer: dict[str, Any] = {name: found} if found else {}
    if token:
        answer["next_page_token"] = token
    return answer


def pairs(given: Iterable[Pair]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in given]


def number(value: float) -> float | str:
    if isfinite(value):
        return value
    return "NaN" if isnan(value) else copysign(LARGEST, value)


def _input(one: DatasetInput) -> dict[str, Any]:
    data = one.dataset
    dataset = {
        "name": data.name,
        "digest": data.digest,
        "source_type": data.source_type,
        "source": data.source,
        "schema": data.schema,
        "profile": data.profile,
    }
    answer = {"tags": pairs(one.tags), "dataset": _without_empty(dataset, "schema", "profile")}
    return _without_empty(answer, "tags")


def _model_metric(metric: ModelMetric) -> dict[str, Any]:
    answer = {
        "key": metric.key,
        "value": number(metric.value),
        "timestamp": metric.at_ms,
        "step": metric.step,
        "model_id": metric.model_id,
        "dataset_name": metric.dataset_name,
        "dataset_digest": metric.dataset_digest,
        "run_id": metric.run_id,
    }
    return _without_empty(answer, "dataset_name", "dataset_digest", "run_id")


def _without_empty(answer: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if value or key not in names}
