"""Calls of review queues: traces that people look through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.answers import page_answer
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, one_of, text, texts, whole, yes_or_no
from windlass.api.mlflow.labels import PAGE_SIZE
from windlass.evaluation.reviews import ReviewItem, ReviewQueue

calls = Calls()

_DEFAULT_PAGE = 1_000
_ID = text(required=True)
_EXPERIMENT = text(required=True)
_KINDS = ("USER", "CUSTOM")
_STATUSES = ("PENDING", "COMPLETE", "DECLINED")
_ANY = "REVIEW_STATUS_UNSPECIFIED"
_PAGE = whole(PAGE_SIZE, empty=_DEFAULT_PAGE)


@calls.post(
    "/mlflow/review-queues/create",
    3,
    experiment_id=_EXPERIMENT,
    name=text(required=True),
    queue_type=one_of(*_KINDS, first=1, required=True),
    users=texts(),
    schema_ids=texts(),
)
def create(services: Services, asked: Asked) -> Mapping[str, Any]:
    """Whose it is, is not the client's to say: there are no users here whom one could tell apart."""
    queue = services.reviews.create(
        asked["experiment_id"],
        name=asked["name"],
        kind=asked["queue_type"].lower(),
        users=asked["users"],
        schema_ids=asked["schema_ids"],
    )
    return {"review_queue": _queue(queue)}


@calls.post("/mlflow/review-queues/get-or-create-user", 3, experiment_id=_EXPERIMENT, user=text(required=True))
def get_of_user(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"review_queue": _queue(services.reviews.queue_of(asked["experiment_id"], asked["user"]))}


@calls.get("/mlflow/review-queues/get", 3, queue_id=_ID)
def get(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"review_queue": _queue(services.reviews.get(asked["queue_id"]))}


@calls.get("/mlflow/review-queues/get-by-name", 3, experiment_id=_EXPERIMENT, name=text(required=True))
def get_named(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"review_queue": _queue(services.reviews.get_named(asked["experiment_id"], asked["name"]))}


@calls.get(
    "/mlflow/review-queues/list",
    3,
    experiment_id=_EXPERIMENT,
    user=text(),
    item_id=text(),
    max_results=_PAGE,
    page_token=text(),
)
def list_all(services: Services, asked: Asked) -> Mapping[str, Any]:
    found, token = services.reviews.list(
        asked["experiment_id"],
        user=asked.or_none("user"),
        trace_id=asked.or_none("item_id"),
        most=asked["max_results"],
        token=asked["page_token"],
    )
    return page_answer("review_queues", [_queue(one) for one in found], token)


@calls.post(
    "/mlflow/review-queues/update",
    3,
    queue_id=_ID,
    name=text(),
    new_owner=text(),
    update_users=yes_or_no(),
    users=texts(),
    update_schema_ids=yes_or_no(),
    schema_ids=texts(),
)
def update(services: Services, asked: Asked) -> Mapping[str, Any]:
    queue = services.reviews.update(
        asked["queue_id"],
        name=asked.or_none("name"),
        owner=asked.or_none("new_owner"),
        users=asked["users"] if asked["update_users"] else None,
        schema_ids=asked["schema_ids"] if asked["update_schema_ids"] else None,
    )
    return {"review_queue": _queue(queue)}


@calls.post("/mlflow/review-queues/delete", 3, queue_id=_ID)
def delete(services: Services, asked: Asked) -> None:
    services.reviews.delete(asked["queue_id"])


# ---- items ---------------------------------------------------------------------------------------------------------


@calls.post(
    "/mlflow/review-queues/items/add",
    3,
    queue_id=_ID,
    item_type=one_of("REVIEW_ITEM_TYPE_UNSPECIFIED", "TRACE"),  # there is no other
    item_ids=texts(),
)
def add(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"items": [_item(one) for one in services.reviews.add(asked["queue_id"], asked["item_ids"])]}


@calls.post("/mlflow/review-queues/items/remove", 3, queue_id=_ID, item_ids=texts())
def remove(services: Services, asked: Asked) -> None:
    services.reviews.remove(asked["queue_id"], asked["item_ids"])


@calls.get(
    "/mlflow/review-queues/items/list",
    3,
    queue_id=_ID,
    status=one_of(_ANY, *_STATUSES),
    max_results=_PAGE,
    page_token=text(),
)
def list_items(services: Services, asked: Asked) -> Mapping[str, Any]:
    status = None if asked["status"] == _ANY else asked["status"].lower()
    found, token = services.reviews.items(
        asked["queue_id"], status=status, most=asked["max_results"], token=asked["page_token"]
    )
    return page_answer("items", [_item(one) for one in found], token)


@calls.post(
    "/mlflow/review-queues/items/set-status",
    3,
    queue_id=_ID,
    item_id=text(required=True),
    status=one_of(*_STATUSES, first=1, required=True),
    completed_by=text(),
)
def set_status(services: Services, asked: Asked) -> Mapping[str, Any]:
    item = services.reviews.set_status(
        asked["queue_id"],
        asked["item_id"],
        status=asked["status"].lower(),
        completed_by=asked.or_none("completed_by"),
    )
    return {"item": _item(item)}


def _queue(one: ReviewQueue) -> dict[str, Any]:
    return {
        "queue_id": one.id,
        "experiment_id": str(one.experiment_id),
        "name": one.name,
        "queue_type": one.kind.upper(),
        **({} if one.created_by is None else {"created_by": one.created_by}),
        "creation_time_ms": one.created_ms,
        "last_update_time_ms": one.updated_ms,
        "users": list(one.users),
        "schema_ids": list(one.schema_ids),
    }


def _item(one: ReviewItem) -> dict[str, Any]:
    optional = {"completed_by": one.completed_by, "completed_time_ms": one.completed_ms}
    return {
        "queue_id": one.queue_id,
        "item_type": "TRACE",
        "item_id": one.trace_id,
        "status": one.status.upper(),
        **{name: value for name, value in optional.items() if value is not None},
        "creation_time_ms": one.created_ms,
        "last_update_time_ms": one.updated_ms,
    }
