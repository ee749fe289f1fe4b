"""Calls of runs: params, metrics, tags, inputs, search."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi.responses import StreamingResponse

from windlass.api.context import Services
from windlass.api.mlflow.answers import (
    history_text,
    info_answer,
    page_answer,
    points_answer,
    run_answer,
)
from windlass.api.mlflow.calls import Answer, Calls
from windlass.api.mlflow.errors import MlflowError
from windlass.api.mlflow.experiments import VIEWS
from windlass.api.mlflow.fields import (
    Asked,
    Check,
    at_most,
    items,
    number,
    one_of,
    text,
    texts,
    whole,
    within,
)
from windlass.api.mlflow.items import read_datasets, read_metrics, read_models, read_pairs
from windlass.core.errors import InvalidInput
from windlass.experiments.history import HistoryPoint
from windlass.experiments.rules import MOST_RESULTS
from windlass.experiments.types import Metric, NewRun, Pair, RunStatus, View

calls = Calls()

RUN_ID = text(required=True, also="run_uuid")
_KEY = text(required=True)
_STATUSES = tuple(status.value for status in RunStatus)
_MOST_BULK = 25_000
_MOST_RUNS = 100
_MOST_SAMPLED = 2_500
_MODEL_FIELDS = ("artifact_path", "flavors", "utc_time_created", "run_id")


# ---- runs ----------------------------------------------------------------------------------------------------------


@calls.post(
    "/mlflow/runs/create",
    experiment_id=text(),
    user_id=text(),
    run_name=text(),
    start_time=whole(),
    tags=items(),
)
def create(services: Services, asked: Asked) -> dict[str, Any]:
    if not asked["experiment_id"]:
        raise MlflowError(
            "BAD_REQUEST", "no experiment_id is given: say in which experiment the run is; '0' is Default"
        )
    new = NewRun(
        experiment_id=asked["experiment_id"],
        name=asked["run_name"],
        user=asked["user_id"],
        start_ms=asked["start_time"],
        tags=read_pairs(asked["tags"], "tags"),
    )
    return {"run": run_answer(services.tracked_runs.create(new))}


@calls.get("/mlflow/runs/get", run_id=RUN_ID)
def get(services: Services, asked: Asked) -> dict[str, Any]:
    return {"run": run_answer(services.tracked_runs.get(asked["run_id"]))}


@calls.post("/mlflow/runs/update", run_id=RUN_ID, status=one_of(*_STATUSES, first=1), end_time=whole(), run_name=text())
def update(services: Services, asked: Asked) -> dict[str, Any]:
    status = asked.or_none("status")
    info = services.tracked_runs.update(
        asked["run_id"],
        status=None if status is None else RunStatus(status),
        end_ms=asked.or_none("end_time"),
        name=asked["run_name"],
    )
    return {"run_info": info_answer(info)}


@calls.post("/mlflow/runs/delete", run_id=RUN_ID)
def delete(services: Services, asked: Asked) -> None:
    services.tracked_runs.delete(asked["run_id"])


@calls.post("/mlflow/runs/restore", run_id=RUN_ID)
def restore(services: Services, asked: Asked) -> None:
    services.tracked_runs.restore(asked["run_id"])


@calls.post(
    "/mlflow/runs/search",
    experiment_ids=texts(),
    filter=text(),
    run_view_type=one_of(*VIEWS, first=1),
    max_results=whole(at_most(MOST_RESULTS), empty=1_000),
    order_by=texts(),
    page_token=text(),
)
def search(services: Services, asked: Asked) -> dict[str, Any]:
    found, token = services.tracked_runs.search(
        experiment_ids=asked["experiment_ids"],
        filter=asked["filter"],
        order=asked["order_by"],
        view=View(asked["run_view_type"]),
        most=asked["max_results"],
        token=asked["page_token"],
    )
    return page_answer("runs", [run_answer(run) for run in found], token)


# ---- what is logged ------------------------------------------------------------------------------------------------


@calls.post(
    "/mlflow/runs/log-metric",
    run_id=RUN_ID,
    key=_KEY,
    value=number(required=True),
    timestamp=whole(required=True),
    step=whole(),
    model_id=text(),
    dataset_name=text(),
    dataset_digest=text(),
)
def log_metric(services: Services, asked: Asked) -> None:
    metric = Metric(
        asked["key"],
        asked["value"],
        asked["timestamp"],
        asked["step"],
        asked["model_id"] or None,
        asked["dataset_name"] or None,
        asked["dataset_digest"] or None,
    )
    services.tracked_runs.log_metric(asked["run_id"], metric)


@calls.post("/mlflow/runs/log-parameter", run_id=RUN_ID, key=_KEY, value=text())
def log_param(services: Services, asked: Asked) -> None:
    services.tracked_runs.log_param(asked["run_id"], Pair(asked["key"], asked["value"]))


@calls.post("/mlflow/runs/set-tag", run_id=RUN_ID, key=_KEY, value=text())
def set_tag(services: Services, asked: Asked) -> None:
    services.tracked_runs.set_tag(asked["run_id"], Pair(asked["key"], asked["value"]))


@calls.post("/mlflow/runs/delete-tag", run_id=RUN_ID, key=_KEY)
def delete_tag(services: Services, asked: Asked) -> None:
    services.tracked_runs.delete_tag(asked["run_id"], asked["key"])


@calls.post("/mlflow/runs/log-batch", run_id=RUN_ID, metrics=items(), params=items(), tags=items())
def log_batch(services: Services, asked: Asked) -> None:
    services.tracked_runs.log_batch(
        asked["run_id"],
        read_metrics(asked["metrics"]),
        read_pairs(asked["params"], "params", keyed=True),
        read_pairs(asked["tags"], "tags", keyed=True),
    )


@calls.post("/mlflow/runs/log-inputs", run_id=RUN_ID, datasets=items(), models=items())
def log_inputs(services: Services, asked: Asked) -> None:
    models = [model.model_id for model in read_models(asked["models"])]
    services.tracked_runs.log_inputs(asked["run_id"], read_datasets(asked["datasets"]), models)


@calls.post("/mlflow/runs/outputs", run_id=RUN_ID, models=items(required=True))
def log_outputs(services: Services, asked: Asked) -> None:
    services.tracked_runs.log_outputs(asked["run_id"], read_models(asked["models"]))


@calls.post("/mlflow/runs/log-model", run_id=RUN_ID, model_json=text(required=True))
def log_model(services: Services, asked: Asked) -> None:
    try:
        model = json.loads(asked["model_json"])
        given = dict(model)
    except (ValueError, TypeError, RecursionError):
        raise InvalidInput(f"Malformed model info. \n {asked['model_json']} \n is not a valid JSON.") from None
    if absent := {name for name in _MODEL_FIELDS if name not in given}:
        raise InvalidInput(f"Model json is missing mandatory fields: {absent}")
    services.tracked_runs.log_model(asked["run_id"], _described(given))


def _described(model: dict[str, Any]) -> dict[str, Any]:
    """What is kept of it: its signature and its environment are in its own files."""
    flavors = {name: flavor for name, flavor in (model.get("flavors") or {}).items() if isinstance(flavor, dict)}
    kept = {name: {key: value for key, value in flavor.items() if key != "env"} for name, flavor in flavors.items()}
    names = ("run_id", "artifact_path", "utc_time_created", "model_uuid", "metadata", "prompts", "resources")
    return {**{name: model[name] for name in names if model.get(name) is not None}, "flavors": kept}


# ---- histories -----------------------------------------------------------------------------------------------------


@calls.get("/mlflow/metrics/get-history", run_id=RUN_ID, metric_key=_KEY, page_token=text(), max_results=whole())
def get_history(services: Services, asked: Asked) -> Answer:
    run_id, key, most = asked["run_id"], asked["metric_key"], asked.or_none("max_results")
    if most is not None and most <= 0:
        raise InvalidInput(f"Invalid value {most} for parameter 'max_results' supplied. It must be a positive integer.")
    found, token = services.tracked_runs.history(run_id, key, most=most, token=asked["page_token"])
    if most is None and token is not None:
        pages = _history_pages(services, run_id, key, found, token)
        return StreamingResponse(history_text(pages), media_type="application/json")
    return page_answer("metrics", points_answer(found, with_run=False), token)


def _history_pages(
    services: Services, run_id: str, key: str, first: Sequence[HistoryPoint], token: str | None
) -> Iterator[Sequence[HistoryPoint]]:
    """All of it, a page at a time, each read when the one before is on its way."""
    yield first
    while token is not None:
        page, token = services.tracked_runs.history(run_id, key, most=None, token=token)
        yield page


@calls.get("/mlflow/metrics/get-history-bulk", run_id=texts(), metric_key=text(), max_results=whole(empty=_MOST_BULK))
def get_history_bulk(services: Services, asked: Asked) -> dict[str, Any]:
    run_ids = asked["run_id"]
    if not run_ids:
        raise InvalidInput("GetMetricHistoryBulk request must specify at least one run_id.")
    if len(run_ids) > _MOST_RUNS:
        raise InvalidInput(
            f"GetMetricHistoryBulk request cannot specify more than {_MOST_RUNS} run_ids."
            f" Received {len(run_ids)} run_ids."
        )
    if "metric_key" not in asked.given:
        raise InvalidInput("GetMetricHistoryBulk request must specify a metric_key.")
    most = min(asked["max_results"], _MOST_BULK)
    found = services.tracked_runs.histories(run_ids, asked["metric_key"], most=most)
    return {"metrics": points_answer(found, with_run=True)}


def _few_runs(_name: str, value: Any) -> None:
    if len(value) > _MOST_RUNS:
        raise InvalidInput(
            f"GetMetricHistoryBulkInterval request must specify at most {_MOST_RUNS} run_ids."
            f" Received {len(value)} run_ids. See the API docs for more information about request parameters."
        )


_FEW_RUNS: Check = _few_runs


@calls.get(
    "/mlflow/metrics/get-history-bulk-interval",
    run_ids=texts(_FEW_RUNS, required=True),
    metric_key=_KEY,
    start_step=whole(),
    end_step=whole(),
    max_results=whole(
        within(1, _MOST_SAMPLED, f"max_results must be between 1 and {_MOST_SAMPLED}."), empty=_MOST_SAMPLED
    ),
)
def get_history_interval(services: Services, asked: Asked) -> dict[str, Any]:
    first, last = asked.or_none("start_step"), asked.or_none("end_step")
    if (first is None) != (last is None):
        raise InvalidInput("If either start step or end step are specified, both must be specified.")
    if first is not None and first > last:
        raise InvalidInput(f"end_step must be greater than start_step. Found start_step={first} and end_step={last}.")
    found = services.tracked_runs.sampled(
        asked["run_ids"],
        asked["metric_key"],
        steps=None if first is None else (first, last),
        most=asked["max_results"],
    )
    return page_answer("metrics", points_answer(found, with_run=True), None)
