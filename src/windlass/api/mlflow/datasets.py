"""Calls of data sets for evaluations. Much of what they carry is JSON within JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, invalid, text, texts, whole
from windlass.core.errors import InvalidInput
from windlass.evaluation.datasets import Dataset
from windlass.evaluation.records import Record

calls = Calls()

_ONE = "/mlflow/datasets/{dataset_id}"
_SEARCH = {
    "experiment_ids": texts(),
    "filter_string": text(),
    "max_results": whole(),
    "order_by": texts(),
    "page_token": text(),
}


@calls.post("/mlflow/datasets/create", 3, name=text(required=True), experiment_ids=texts(), tags=text())
def create(services: Services, asked: Asked) -> Mapping[str, Any]:
    tags = _loaded("tags", asked["tags"], dict) if asked["tags"] else {}
    dataset = services.datasets.create(asked["name"], tags=tags, experiment_ids=asked["experiment_ids"])
    return {"dataset": _dataset(dataset)}


@calls.post("/mlflow/datasets/search", 3, **_SEARCH)
@calls.get("/mlflow/datasets/search", 3, **_SEARCH)
def search(services: Services, asked: Asked) -> Mapping[str, Any]:
    found, token = services.datasets.search(
        experiment_ids=asked["experiment_ids"],
        filter=asked["filter_string"],
        order_by=asked["order_by"],
        limit=asked["max_results"] or 1000,
        token=asked["page_token"],
    )
    return {"datasets": [_dataset(one) for one in found], **({"next_page_token": token} if token else {})}


@calls.get(_ONE, 3, dataset_id=text())
def get(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"dataset": _dataset(services.datasets.get(asked["dataset_id"]))}


@calls.delete(_ONE, 3, dataset_id=text())
def delete(services: Services, asked: Asked) -> None:
    services.datasets.delete(asked["dataset_id"])


@calls.patch(f"{_ONE}/tags", 3, dataset_id=text(), tags=text(required=True))
def set_tags(services: Services, asked: Asked) -> None:
    services.datasets.set_tags(asked["dataset_id"], _loaded("tags", asked["tags"], dict))


@calls.delete(f"{_ONE}/tags/{{key}}", 3, dataset_id=text(), key=text())
def delete_tag(services: Services, asked: Asked) -> None:
    services.datasets.delete_tag(asked["dataset_id"], asked["key"])


@calls.post(f"{_ONE}/records", 3, dataset_id=text(), records=text(required=True))
def upsert_records(services: Services, asked: Asked) -> Mapping[str, Any]:
    inserted, updated = services.datasets.upsert(asked["dataset_id"], _loaded("records", asked["records"], list))
    return {"inserted_count": inserted, "updated_count": updated}


@calls.get(f"{_ONE}/records", 3, dataset_id=text(), max_results=whole(), page_token=text())
def get_records(services: Services, asked: Asked) -> Mapping[str, Any]:
    found, token = services.datasets.records(
        asked["dataset_id"], limit=asked["max_results"] or 1000, token=asked["page_token"]
    )
    shown = json.dumps([_record(one) for one in found])
    return {"records": shown, **({"next_page_token": token} if token else {})}


@calls.delete(f"{_ONE}/records", 3, dataset_id=text(), dataset_record_ids=texts())
def delete_records(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"deleted_count": services.datasets.delete_records(asked["dataset_id"], asked["dataset_record_ids"])}


@calls.get(f"{_ONE}/experiment-ids", 3, dataset_id=text())
def experiment_ids(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"experiment_ids": services.datasets.experiment_ids(asked["dataset_id"])}


@calls.post(f"{_ONE}/add-experiments", 3, dataset_id=text(), experiment_ids=texts())
def add_experiments(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"dataset": _dataset(services.datasets.add_experiments(asked["dataset_id"], asked["experiment_ids"]))}


@calls.post(f"{_ONE}/remove-experiments", 3, dataset_id=text(), experiment_ids=texts())
def remove_experiments(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"dataset": _dataset(services.datasets.remove_experiments(asked["dataset_id"], asked["experiment_ids"]))}


def _loaded(name: str, given: str, kind: type) -> Any:
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise InvalidInput(invalid(name, given))
    return found


def _dataset(one: Dataset) -> dict[str, Any]:
    optional = {
        "schema": one.schema,
        "profile": one.profile,
        "created_by": one.created_by,
        "last_updated_by": one.updated_by,
        "experiment_ids": list(one.experiment_ids) if one.experiment_ids else None,
    }
    return {
        "dataset_id": one.id,
        "name": one.name,
        "tags": json.dumps(dict(one.tags)),
        "digest": one.digest,
        "created_time": one.created_ms,
        "last_update_time": one.updated_ms,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _record(one: Record) -> dict[str, Any]:
    optional = {
        "outputs": one.outputs,
        "expectations": one.expectations,
        "tags": one.tags,
        "source": one.source,
        "source_id": one.source_id,
        "source_type": one.source_type,
        "created_by": one.created_by,
        "last_updated_by": one.updated_by,
    }
    return {
        "dataset_record_id": one.id,
        "dataset_id": one.dataset_id,
        "inputs": one.inputs,
        "created_time": one.created_ms,
        "last_update_time": one.updated_ms,
        **{name: value for name, value in optional.items() if value is not None},
    }
