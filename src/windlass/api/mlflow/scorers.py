"""Calls of scorers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, anything, number, text, texts, whole
from windlass.core.errors import InvalidInput
from windlass.evaluation.scorers import Sampling, Scorer

calls = Calls()

_NAMED = {"experiment_id": text(required=True), "name": text(required=True)}
_CODE = (
    "Custom scorer registration (using @scorer decorator) is not supported outside of Databricks tracking "
    "environments due to security concerns. Custom scorers require arbitrary code execution during deserialization."
)


@calls.post("/mlflow/scorers/register", 3, **_NAMED, serialized_scorer=text(required=True))
def register(services: Services, asked: Asked) -> Mapping[str, Any]:
    _refuse_code(asked["serialized_scorer"])
    made = services.scorers.register(asked["experiment_id"], asked["name"], asked["serialized_scorer"])
    return {
        "version": made.version,
        "scorer_id": made.id,
        "experiment_id": str(made.experiment_id),
        "name": made.name,
        "serialized_scorer": made.serialized,
        "creation_time": made.created_ms,
    }


@calls.get("/mlflow/scorers/list", 3, experiment_id=text())
def list_newest(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"scorers": [_scorer(one) for one in services.scorers.newest(asked["experiment_id"] or None)]}


@calls.get("/mlflow/scorers/versions", 3, **_NAMED)
def list_versions(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"scorers": [_scorer(one) for one in services.scorers.versions(asked["experiment_id"], asked["name"])]}


@calls.get("/mlflow/scorers/get", 3, **_NAMED, version=whole())
def get(services: Services, asked: Asked) -> Mapping[str, Any]:
    found = services.scorers.get(asked["experiment_id"], asked["name"], asked.or_none("version"))
    return {"scorer": _scorer(found)}


@calls.delete("/mlflow/scorers/delete", 3, **_NAMED, version=whole())
def delete(services: Services, asked: Asked) -> None:
    services.scorers.delete(asked["experiment_id"], asked["name"], asked.or_none("version"))


@calls.get("/mlflow/scorers/online-configs", 3, scorer_ids=texts(required=True))
def get_samplings(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"configs": [_sampling(one) for one in services.scorers.samplings(asked["scorer_ids"])]}


@calls.put("/mlflow/scorers/online-config", 3, **_NAMED, sample_rate=number(required=True), filter_string=anything())
def sample(services: Services, asked: Asked) -> Mapping[str, Any]:
    given = asked["filter_string"]
    if given is not None and not isinstance(given, str):
        raise InvalidInput(
            f"Invalid value {given!r} for parameter 'filter_string' supplied: "
            f"Value was of type '{type(given).__name__}'. Expected type 'str' or None."
        )
    made = services.scorers.sample(
        asked["experiment_id"], asked["name"], sample_rate=asked["sample_rate"], filter=given
    )
    return {"config": _sampling(made)}


def _refuse_code(serialized: str) -> None:
    """Whoever reads such a scorer would run what is in it."""
    try:
        content = json.loads(serialized)
    except (ValueError, RecursionError):
        raise InvalidInput("serialized_scorer must be valid JSON") from None
    if isinstance(content, dict) and content.get("call_source") is not None:
        raise InvalidInput(_CODE)


def _scorer(one: Scorer) -> dict[str, Any]:
    return {
        "experiment_id": one.experiment_id,
        "scorer_name": one.name,
        "scorer_version": one.version,
        "serialized_scorer": one.serialized,
        "creation_time": one.created_ms,
        "scorer_id": one.id,
    }


def _sampling(one: Sampling) -> dict[str, Any]:
    return {
        "online_scoring_config_id": one.id,
        "scorer_id": one.scorer_id,
        "sample_rate": one.sample_rate,
        "experiment_id": str(one.experiment_id),
        **({"filter_string": one.filter} if one.filter is not None else {}),
    }
