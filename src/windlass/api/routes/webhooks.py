"""Routes of webhooks: of runs as well as of models, unlike MLflow's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from windlass.api.context import Context
from windlass.webhooks.types import DeliveryState, Webhook
from windlass.wire import webhooks as wire

router = APIRouter(prefix="/api/webhooks", tags=["webhooks"])

WebhookId = Annotated[str, Path(min_length=1, max_length=36, pattern=r"^[0-9a-f-]*$")]


@router.get("")
def list_webhooks(
    services: Context,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    token: Annotated[str | None, Query(description="`next_token` of the page before")] = None,
) -> wire.WebhookList:
    """Newest first."""
    found, next_token = services.webhooks.list(most=limit, token=token)
    return wire.WebhookList(webhooks=[_view(webhook) for webhook in found], next_token=next_token)


@router.post("", status_code=201)
def create(request: wire.WebhookRequest, services: Context) -> wire.WebhookView:
    return _view(
        services.webhooks.create(
            name=request.name,
            url=request.url,
            events=request.events,
            description=request.description,
            secret=request.secret,
        )
    )


@router.delete("/{webhook_id}", status_code=204)
def delete(webhook_id: WebhookId, services: Context) -> None:
    services.webhooks.delete(webhook_id)


@router.get("/{webhook_id}/deliveries")
def deliveries(
    webhook_id: WebhookId, services: Context, limit: Annotated[int, Query(ge=1, le=1_000)] = 100
) -> wire.DeliveryList:
    """What became of what it was to hear in the last week, newest first."""
    found = services.webhooks.deliveries(webhook_id, most=limit)
    return wire.DeliveryList(deliveries=[_delivery(row) for row in found])


@router.post("/{webhook_id}/test")
def try_out(webhook_id: WebhookId, services: Context, request: wire.TrialRequest | None = None) -> wire.TrialView:
    """Send an example now, once; the answer says what came of it."""
    reply = services.webhooks.try_out(webhook_id, request.event if request else None)
    return wire.TrialView(
        success=reply.is_success, response_status=reply.status, response_body=reply.body, error=reply.error
    )


def _delivery(row: Mapping[str, Any]) -> wire.DeliveryView:
    shown = {name: row[name] for name in wire.DeliveryView.model_fields}
    return wire.DeliveryView(**{**shown, "due_at": row["due_at"] if row["state"] == DeliveryState.WAITING else None})


def _view(webhook: Webhook) -> wire.WebhookView:
    return wire.WebhookView(
        id=webhook.id,
        name=webhook.name,
        url=webhook.url,
        events=list(webhook.events),
        description=webhook.description,
        status=webhook.status,
        created_at=webhook.created_at,
        updated_at=webhook.updated_at,
    )
