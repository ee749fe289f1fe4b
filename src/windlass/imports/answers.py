"""Records of MLflow as its REST API writes them in JSON. Pure. Whole numbers may come as text, and what is empty may be
left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from windlass.imports.records import (
    Dataset,
    Experiment,
    LoggedModel,
    ModelPoint,
    Owner,
    Point,
    RegisteredModel,
    Run,
    Version,
)

LARGEST = 1.7976931348623157e308  # what MLflow's SQL stores keep for an infinity
_STATUSES = {"LOGGED_MODEL_PENDING": "PENDING", "LOGGED_MODEL_READY": "READY"}
_FAILED = "LOGGED_MODEL_UPLOAD_FAILED"


def read_experiment(found: Mapping[str, Any]) -> Experiment:
    return Experiment(
        id=str(found["experiment_id"]),
        name=str(found["name"]),
        deleted=found.get("lifecycle_stage") == "deleted",
        tags=_pairs(found.get("tags")),
    )


def read_run(found: Mapping[str, Any]) -> Run:
    info, data = found["info"], found.get("data") or {}
    inputs, outputs = found.get("inputs") or {}, found.get("outputs") or {}
    tags = _pairs(data.get("tags"))
    run_id = str(info.get("run_id") or info["run_uuid"])
    return Run(
        id=run_id,
        name=str(info.get("run_name") or tags.get("mlflow.runName") or ""),
        user=str(info.get("user_id") or ""),
        status=str(info.get("status") or "FINISHED"),
        start_ms=_whole(info.get("start_time")),
        end_ms=_whole(info.get("end_time")),
        deleted=info.get("lifecycle_stage") == "deleted",
        artifact_uri=str(info.get("artifact_uri") or ""),
        params=_pairs(data.get("params")),
        tags=tags,
        metrics={str(one["key"]): read_point(one) for one in data.get("metrics") or ()},
        datasets=[_dataset(one) for one in inputs.get("dataset_inputs") or ()],
        model_inputs=[str(one["model_id"]) for one in inputs.get("model_inputs") or ()],
        model_outputs=[(str(one["model_id"]), int(one.get("step") or 0)) for one in outputs.get("model_outputs") or ()],
        files=Owner("run", run_id),
    )


def read_histories(answer: Mapping[str, Any]) -> dict[str, list[Point]]:
    """What our own servers tell of many metrics of a run."""
    return {
        name: [Point(int(step), int(at_ms), plain(float(value))) for step, at_ms, value in rows]
        for name, rows in answer["points"].items()
    }


def read_point(found: Mapping[str, Any]) -> Point:
    return Point(int(found.get("step") or 0), int(found.get("timestamp") or 0), plain(float(found.get("value") or 0)))


def plain(value: float) -> float:
    """Infinities as they were logged."""
    return math.copysign(math.inf, value) if abs(value) == LARGEST else value


def read_logged_model(found: Mapping[str, Any]) -> LoggedModel:
    info, data = found["info"], found.get("data") or {}
    model_id = str(info["model_id"])
    status = str(info.get("status") or "")
    return LoggedModel(
        id=model_id,
        name=str(info.get("name") or model_id),
        status="FAILED" if status == _FAILED else _STATUSES.get(status, "UNSPECIFIED"),
        status_message=info.get("status_message"),
        created_ms=int(info.get("creation_timestamp_ms") or 0),
        updated_ms=int(info.get("last_updated_timestamp_ms") or 0),
        artifact_uri=str(info.get("artifact_uri") or ""),
        model_type=info.get("model_type") or None,
        source_run_id=info.get("source_run_id") or None,
        params=_pairs(data.get("params")),
        tags=_pairs(info.get("tags")),
        metrics=[
            ModelPoint(
                key=str(one["key"]),
                point=read_point(one),
                run_id=str(one["run_id"]),
                dataset_name=one.get("dataset_name") or None,
                dataset_digest=one.get("dataset_digest") or None,
            )
            for one in data.get("metrics") or ()
            if one.get("run_id")
        ],
        files=Owner("model", model_id),
    )


def read_registered_model(found: Mapping[str, Any], versions: Iterable[Mapping[str, Any]]) -> RegisteredModel:
    return RegisteredModel(
        name=str(found["name"]),
        description=found.get("description") or None,
        tags=_pairs(found.get("tags")),
        aliases={str(one["alias"]): int(one["version"]) for one in found.get("aliases") or ()},
        versions=sorted((read_version(one, _pairs(one.get("tags"))) for one in versions), key=lambda one: one.version),
    )


def read_version(found: Mapping[str, Any], tags: Mapping[str, str]) -> Version:
    """From what a server answers, or a file of MLflow's holds: names are the same, but tags lie apart there."""
    created = int(found.get("creation_timestamp") or 0)
    return Version(
        version=int(found["version"]),
        source=str(found.get("source") or ""),
        stage=str(found.get("current_stage") or "None"),
        description=found.get("description") or None,
        run_id=found.get("run_id") or None,
        run_link=found.get("run_link") or None,
        model_id=found.get("model_id") or None,
        created_ms=created,
        updated_ms=int(found.get("last_updated_timestamp") or created),
        tags=tags,
    )


def _dataset(found: Mapping[str, Any]) -> Dataset:
    data = found.get("dataset") or {}
    return Dataset(
        name=str(data.get("name") or ""),
        digest=str(data.get("digest") or ""),
        source_type=str(data.get("source_type") or ""),
        source=str(data.get("source") or ""),
        schema=data.get("schema"),
        profile=data.get("profile"),
        tags=_pairs(found.get("tags")),
    )


def _pairs(found: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    return {str(one["key"]): str(one.get("value") or "") for one in found or ()}


def _whole(value: Any) -> int | None:
    return None if value in (None, "", 0, "0") else int(value)
