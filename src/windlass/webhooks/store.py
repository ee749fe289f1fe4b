"""Reading and writing webhooks. Functions over an open transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from windlass.core.errors import NotFound
from windlass.core.storable import storable_text
from windlass.webhooks.tables import webhook_events, webhooks
from windlass.webhooks.types import Webhook, WebhookStatus


def put_webhook(tx: Connection, webhook: Webhook) -> None:
    row = {column.name: getattr(webhook, column.name) for column in webhooks.c}
    tx.execute(insert(webhooks).values(**row))
    _put_events(tx, webhook.id, webhook.events)


def update_webhook(tx: Connection, webhook_id: str, events: Sequence[str] | None, **changes: Any) -> None:
    tx.execute(update(webhooks).where(webhooks.c.id == webhook_id).values(**changes))
    if events is not None:
        tx.execute(delete(webhook_events).where(webhook_events.c.webhook_id == webhook_id))
        _put_events(tx, webhook_id, events)


def delete_webhook(tx: Connection, webhook_id: str) -> None:
    """With everything that is on its way to it."""
    if tx.execute(delete(webhooks).where(webhooks.c.id == storable_text(webhook_id))).rowcount == 0:
        raise no_webhook(webhook_id)


def load_webhook(tx: Connection, webhook_id: str, *, lock: bool = False) -> Webhook:
    query = select(webhooks).where(webhooks.c.id == storable_text(webhook_id))
    row = tx.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise no_webhook(webhook_id)
    return _webhooks(tx, [row])[0]


def load_webhooks(tx: Connection, *, most: int, offset: int) -> tuple[list[Webhook], bool]:
    """One page, newest first, and whether there are more."""
    c = webhooks.c
    query = select(webhooks).order_by(c.created_at.desc(), c.id).limit(most + 1).offset(offset)
    rows = tx.execute(query).all()
    return _webhooks(tx, rows[:most]), len(rows) > most


def no_webhook(webhook_id: str) -> NotFound:
    return NotFound(f"Webhook with ID {webhook_id} not found.")


def _put_events(tx: Connection, webhook_id: str, events: Sequence[str]) -> None:
    rows = [{"webhook_id": webhook_id, "event": event, "position": place} for place, event in enumerate(events)]
    tx.execute(insert(webhook_events), rows)


def _webhooks(tx: Connection, rows: Sequence[Row[Any]]) -> list[Webhook]:
    c = webhook_events.c
    events: dict[str, list[str]] = defaultdict(list)
    ids = [row.id for row in rows]
    for row in tx.execute(select(webhook_events).where(c.webhook_id.in_(ids)).order_by(c.webhook_id, c.position)):
        events[row.webhook_id].append(row.event)
    return [_webhook(row, tuple(events[row.id])) for row in rows]


def _webhook(row: Row[Any], events: tuple[str, ...]) -> Webhook:
    values: dict[str, Any] = {**row._mapping, "status": WebhookStatus(row.status)}
    values["secret"] = None if row.secret is None else bytes(row.secret)
    return Webhook(**values, events=events)
