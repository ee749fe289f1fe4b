"""Calls of logged models."""

from __future__ import annotations

from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.answers import MODEL_STATUSES, model_answer, page_answer
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, invalid, items, one_of, read_fields, text, texts, whole, yes_or_no
from windlass.api.mlflow.items import read_pairs
from windlass.core.errors import InvalidInput
from windlass.experiments.modelsearch import ModelSearch
from windlass.experiments.types import DatasetChoice, ModelOrder, NewModel

calls = Calls()
_MOST = 100  # of one page, if the client does not say

_ORDER = {"field_name": text(), "ascending": yes_or_no(), "dataset_name": text(), "dataset_digest": text()}
_DATASET = {"dataset_name": text(), "dataset_digest": text()}


@calls.post(
    "/mlflow/logged-models",
    experiment_id=text(required=True),
    name=text(),
    model_type=text(),
    source_run_id=text(),
    params=items(),
    tags=items(),
)
def create(services: Services, asked: Asked) -> dict[str, Any]:
    new = NewModel(
        experiment_id=asked["experiment_id"],
        name=asked["name"] or None,
        model_type=asked["model_type"],
        source_run_id=asked["source_run_id"],
        params=read_pairs(asked["params"], "params"),
        tags=read_pairs(asked["tags"], "tags"),
    )
    return {"model": model_answer(services.logged_models.create(new))}


@calls.get("/mlflow/logged-models/{model_id}", model_id=text(required=True), allow_deleted=yes_or_no())
def get(services: Services, asked: Asked) -> dict[str, Any]:
    model = services.logged_models.get(asked["model_id"], deleted_too=asked["allow_deleted"])
    return {"model": model_answer(model)}


@calls.patch("/mlflow/logged-models/{model_id}", model_id=text(required=True), status=one_of(*MODEL_STATUSES))
def finalize(services: Services, asked: Asked) -> dict[str, Any]:
    if "status" not in asked.given:
        raise InvalidInput(
            "Missing value for required parameter 'status'. See the API docs for more information about request"
            " parameters."
        )
    status = MODEL_STATUSES.index(asked["status"])
    return {"model": model_answer(services.logged_models.finalize(asked["model_id"], status))}


@calls.delete("/mlflow/logged-models/{model_id}", model_id=text(required=True))
def delete(services: Services, asked: Asked) -> None:
    services.logged_models.delete(asked["model_id"])


@calls.post("/mlflow/logged-models/{model_id}/params", model_id=text(required=True), params=items())
def log_params(services: Services, asked: Asked) -> None:
    services.logged_models.log_params(asked["model_id"], read_pairs(asked["params"], "params"))


@calls.patch("/mlflow/logged-models/{model_id}/tags", model_id=text(required=True), tags=items())
def set_tags(services: Services, asked: Asked) -> dict[str, Any]:
    model = services.logged_models.set_tags(asked["model_id"], read_pairs(asked["tags"], "tags"))
    return {"model": model_answer(model)}


@calls.delete("/mlflow/logged-models/{model_id}/tags/{tag_key}", model_id=text(required=True), tag_key=text())
def delete_tag(services: Services, asked: Asked) -> None:
    services.logged_models.delete_tag(asked["model_id"], asked["tag_key"])


@calls.post(
    "/mlflow/logged-models/search",
    experiment_ids=texts(required=True),
    filter=text(),
    datasets=items(),
    max_results=whole(),
    order_by=items(),
    page_token=text(),
)
def search(services: Services, asked: Asked) -> dict[str, Any]:
    wanted = ModelSearch(
        experiment_ids=tuple(asked["experiment_ids"]),
        filter=asked["filter"] or None,
        datasets=[_dataset(one) for one in asked["datasets"]],
        order=[_order(one) for one in asked["order_by"]],
    )
    found, token = services.logged_models.search(wanted, most=asked["max_results"] or _MOST, token=asked["page_token"])
    return page_answer("models", [model_answer(model) for model in found], token)


def _dataset(given: Any) -> DatasetChoice:
    if not isinstance(given, dict):
        raise InvalidInput(invalid("datasets", given))
    found = read_fields(_DATASET, given)
    return DatasetChoice(name=found["dataset_name"], digest=found["dataset_digest"] or None)


def _order(given: Any) -> ModelOrder:
    if not isinstance(given, dict):
        raise InvalidInput(invalid("order_by", given))
    found = read_fields(_ORDER, given)
    return ModelOrder(
        field=found["field_name"],
        ascending=found["ascending"] if "ascending" in found.given else True,
        dataset_name=found["dataset_name"] or None,
        dataset_digest=found["dataset_digest"] or None,
    )
