"""Calls of experiments."""

from __future__ import annotations

from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.answers import experiment_answer, page_answer
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, items, one_of, text, texts, whole
from windlass.api.mlflow.items import read_pairs
from windlass.core.errors import InvalidInput
from windlass.experiments.types import Pair, View

calls = Calls()
VIEWS = tuple(view.value for view in View)
_MOST_EXPERIMENTS = 20
_SEARCH = {
    "view_type": one_of(*VIEWS, first=1),
    "max_results": whole(empty=1_000),
    "order_by": texts(),
    "filter": text(),
    "page_token": text(),
}


@calls.post("/mlflow/experiments/create", name=text(required=True), artifact_location=text(), tags=items())
def create(services: Services, asked: Asked) -> dict[str, Any]:
    tags = read_pairs(asked["tags"], "tags")
    number = services.experiments.create(asked["name"], asked["artifact_location"], tags)
    return {"experiment_id": str(number)}


@calls.get("/mlflow/experiments/get", experiment_id=text(required=True))
def get(services: Services, asked: Asked) -> dict[str, Any]:
    return {"experiment": experiment_answer(services.experiments.get(asked["experiment_id"]))}


@calls.get("/mlflow/experiments/get-by-name", experiment_name=text(required=True))
def get_by_name(services: Services, asked: Asked) -> dict[str, Any]:
    return {"experiment": experiment_answer(services.experiments.get_named(asked["experiment_name"]))}


@calls.post("/mlflow/experiments/delete", experiment_id=text(required=True))
def delete(services: Services, asked: Asked) -> None:
    services.experiments.delete(asked["experiment_id"])


@calls.post("/mlflow/experiments/restore", experiment_id=text(required=True))
def restore(services: Services, asked: Asked) -> None:
    services.experiments.restore(asked["experiment_id"])


@calls.post("/mlflow/experiments/update", experiment_id=text(required=True), new_name=text(required=True))
def update(services: Services, asked: Asked) -> None:
    services.experiments.rename(asked["experiment_id"], asked["new_name"])


@calls.post("/mlflow/experiments/search", **_SEARCH)
@calls.get("/mlflow/experiments/search", **_SEARCH)
def search(services: Services, asked: Asked) -> dict[str, Any]:
    found, token = services.experiments.search(
        filter=asked["filter"],
        order=asked["order_by"],
        view=View(asked["view_type"]),
        most=asked["max_results"],
        token=asked["page_token"],
    )
    return page_answer("experiments", [experiment_answer(one) for one in found], token)


@calls.post(
    "/mlflow/experiments/set-experiment-tag", experiment_id=text(required=True), key=text(required=True), value=text()
)
def set_tag(services: Services, asked: Asked) -> None:
    services.experiments.set_tag(asked["experiment_id"], Pair(asked["key"], asked["value"]))


@calls.post("/mlflow/experiments/delete-experiment-tag", experiment_id=text(required=True), key=text(required=True))
def delete_tag(services: Services, asked: Asked) -> None:
    services.experiments.delete_tag(asked["experiment_id"], asked["key"])


@calls.post("/mlflow/experiments/search-datasets", experiment_ids=texts())
def search_datasets(services: Services, asked: Asked) -> dict[str, Any]:
    wanted = asked["experiment_ids"]
    if not wanted:
        raise InvalidInput("SearchDatasets request must specify at least one experiment_id.")
    if len(wanted) > _MOST_EXPERIMENTS:
        raise InvalidInput(
            f"SearchDatasets request cannot specify more than {_MOST_EXPERIMENTS} experiment_ids."
            f" Received {len(wanted)} experiment_ids."
        )
    found = []
    for number, name, digest, context in services.experiments.datasets(wanted):
        summary = {"experiment_id": str(number), "name": name, "digest": digest}
        found.append({**summary, "context": context} if context else summary)
    return page_answer("dataset_summaries", found, None)
