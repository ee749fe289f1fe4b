"""Calls of webhooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, anything, invalid, items, text, thing, whole
from windlass.core.errors import InvalidInput
from windlass.webhooks.events import EXAMPLES, event_named
from windlass.webhooks.service import Changes
from windlass.webhooks.types import Reply, Webhook, WebhookStatus

calls = Calls()

# Clients may send numbers for names, as protobuf counts them.
_STATUSES = {1: WebhookStatus.ACTIVE, 2: WebhookStatus.DISABLED}
_ENTITIES = (
    "entity_unspecified",
    "registered_model",
    "model_version",
    "model_version_tag",
    "model_version_alias",
    "prompt",
    "prompt_version",
    "prompt_tag",
    "prompt_version_tag",
    "prompt_alias",
    "budget_policy",
)
_ACTIONS = ("action_unspecified", "created", "updated", "deleted", "set", "exceeded")
_ID = text(required=True)


@calls.post(
    "/mlflow/webhooks",
    name=text(required=True),
    url=text(required=True),
    events=items(required=True),
    description=text(),
    secret=text(shown=False),
    status=anything(),
)
def create(services: Services, asked: Asked) -> Mapping[str, Any]:
    webhook = services.webhooks.create(
        name=asked["name"],
        url=asked["url"],
        events=_read_events(asked["events"]),
        description=asked["description"] or None,
        secret=asked["secret"] or None,
        status=_read_status(asked["status"]) or WebhookStatus.ACTIVE,
    )
    return {"webhook": render_webhook(webhook)}


@calls.get("/mlflow/webhooks", max_results=whole(empty=100), page_token=text())
def list_all(services: Services, asked: Asked) -> Mapping[str, Any]:
    found, token = services.webhooks.list(most=asked["max_results"], token=asked["page_token"])
    rendered = [shown for webhook in found if (shown := render_webhook(webhook))["events"]]
    answer: dict[str, Any] = {"webhooks": rendered} if rendered else {}
    return {**answer, "next_page_token": token} if token else answer


@calls.get("/mlflow/webhooks/{webhook_id}", webhook_id=_ID)
def get(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"webhook": render_webhook(services.webhooks.get(asked["webhook_id"]))}


@calls.patch(
    "/mlflow/webhooks/{webhook_id}",
    webhook_id=_ID,
    name=text(),
    description=text(),
    url=text(),
    events=items(),
    secret=text(shown=False),
    status=anything(),
)
def update(services: Services, asked: Asked) -> Mapping[str, Any]:
    changes = Changes(
        name=asked["name"] or None,
        description=asked.or_none("description"),
        url=asked["url"] or None,
        events=_read_events(asked["events"]) if asked["events"] else None,
        secret=asked.or_none("secret"),
        status=_read_status(asked["status"]),
    )
    return {"webhook": render_webhook(services.webhooks.update(asked["webhook_id"], changes))}


@calls.delete("/mlflow/webhooks/{webhook_id}", webhook_id=_ID)
def delete(services: Services, asked: Asked) -> None:
    services.webhooks.delete(asked["webhook_id"])


@calls.post("/mlflow/webhooks/{webhook_id}/test", webhook_id=_ID, event=thing())
def try_out(services: Services, asked: Asked) -> Mapping[str, Any]:
    event = asked["event"]
    wanted = _read_events([event])[0] if event else None
    return {"result": _render_reply(services.webhooks.try_out(asked["webhook_id"], wanted))}


def render_webhook(webhook: Webhook) -> dict[str, Any]:
    """Never its secret; of its events those that MLflow's clients know."""
    rendered: dict[str, Any] = {
        "webhook_id": webhook.id,
        "name": webhook.name,
        "url": webhook.url,
        "events": [_render_event(event) for event in webhook.events if event in EXAMPLES],
        "status": webhook.status.value,
        "creation_timestamp": int(webhook.created_at * 1000),
        "last_updated_timestamp": int(webhook.updated_at * 1000),
    }
    if webhook.description:
        rendered["description"] = webhook.description
    return rendered


def _render_event(event: str) -> dict[str, str]:
    entity, _, action = event.partition(".")
    return {"entity": entity.upper(), "action": action.upper()}


def _render_reply(reply: Reply) -> dict[str, Any]:
    if reply.status is None:
        return {"success": False, "error_message": f"Failed to test webhook: {reply.error}"}
    return {"success": reply.is_success, "response_status": reply.status, "response_body": reply.body}


def _read_events(given: Sequence[Any]) -> list[str]:
    events = []
    for item in given:
        if not isinstance(item, dict):
            raise InvalidInput(invalid("events", list(given)))
        entity, action = _name(item.get("entity"), _ENTITIES), _name(item.get("action"), _ACTIONS)
        if entity is None or action is None:
            raise InvalidInput(invalid("events", item, why="an event is {'entity': 'MODEL_VERSION', ...}"))
        events.append(event_named(entity, action))
    return events


def _name(given: Any, known: Sequence[str]) -> str | None:
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < len(known):
        return known[given]
    return given.lower() if isinstance(given, str) and given.lower() in known else None


def _read_status(given: Any) -> WebhookStatus | None:
    if given is None or given == "":
        return None
    status = _STATUSES.get(given) if isinstance(given, int) else None
    if status is None and isinstance(given, str) and given in WebhookStatus.__members__:
        status = WebhookStatus[given]
    if status is None:
        known = ", ".join(WebhookStatus)
        raise InvalidInput(invalid("status", given, why=f"it is one of {known}."))
    return status
