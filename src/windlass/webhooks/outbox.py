"""Events on their way out. An event is written in the transaction that it happens in, so that neither is there
without the other; it is sent afterwards, by whichever server claims it. A crash between sending and recording that
sends it again, under the same id: receivers can tell.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from windlass.webhooks.events import render_body
from windlass.webhooks.retry import Verdict
from windlass.webhooks.tables import webhook_deliveries, webhook_events, webhooks
from windlass.webhooks.types import Delivery, DeliveryState, Reply, WebhookStatus

_LONGEST_DETAIL = 1_000


class Happening(NamedTuple):
    event: str
    data: Mapping[str, Any]
    at: float


def put_event(tx: Connection, event: str, data: Mapping[str, Any], *, at: float) -> int:
    """For each webhook that wants to hear of it; how many that are."""
    return put_events(tx, [Happening(event, data, at)])


def put_events(tx: Connection, happenings: Sequence[Happening]) -> int:
    """Of any number, with one look at who wants to hear of them."""
    if not happenings:
        return 0
    events = sorted({happening.event for happening in happenings})
    wanted = (
        select(webhook_events.c.event, webhooks.c.id)
        .join(webhook_events, webhook_events.c.webhook_id == webhooks.c.id)
        .where(webhook_events.c.event.in_(events), webhooks.c.status == WebhookStatus.ACTIVE)
    )
    listeners: dict[str, list[str]] = defaultdict(list)
    for event, webhook_id in tx.execute(wanted):
        listeners[event].append(webhook_id)
    if not listeners:
        return 0
    rows = []
    for happening in happenings:
        if heard := listeners.get(happening.event):
            body = render_body(happening.event, happening.data, at=happening.at)
            rows += [_row(webhook_id, happening.event, body, happening.at) for webhook_id in heard]
    if rows:
        tx.execute(insert(webhook_deliveries), rows)
    return len(rows)


def load_due(tx: Connection, *, now: float, limit: int, besides: Collection[str] = ()) -> list[Delivery]:
    """Claimed ones among them: whether their claim still counts is for the reader to say. None of the webhooks
    `besides`."""
    c = webhook_deliveries.c
    due = and_(c.state == DeliveryState.WAITING, c.due_at <= now, c.webhook_id.not_in(besides))
    query = select(c.id, c.webhook_id, c.event, c.body, c.attempts, c.due_at, c.claimed_by)
    rows = tx.execute(query.where(due).order_by(c.due_at, c.created_at).limit(limit))
    return [Delivery(**row._mapping) for row in rows]


def load_next_due(tx: Connection, *, after: float) -> float | None:
    c = webhook_deliveries.c
    query = select(func.min(c.due_at)).where(c.state == DeliveryState.WAITING, c.due_at > after)
    return tx.execute(query).scalar_one_or_none()


def claim(tx: Connection, delivery: Delivery, holder: str) -> bool:
    """Guarded: only one of several servers gets it, and none while it is as somebody else made it meanwhile."""
    c = webhook_deliveries.c
    before = c.claimed_by.is_(None) if delivery.claimed_by is None else c.claimed_by == delivery.claimed_by
    same = and_(c.id == delivery.id, c.state == DeliveryState.WAITING, c.attempts == delivery.attempts, before)
    return tx.execute(update(webhook_deliveries).where(same).values(claimed_by=holder)).rowcount == 1


def conclude(tx: Connection, delivery: Delivery, holder: str, reply: Reply, verdict: Verdict, *, at: float) -> bool:
    """False if the claim was lost: then somebody else concludes it."""
    waits = verdict.state is DeliveryState.WAITING
    c = webhook_deliveries.c
    values: dict[str, Any] = {
        "state": verdict.state,
        "attempts": delivery.attempts + 1,
        "claimed_by": None,
        "response_status": reply.status,
        "detail": verdict.detail and verdict.detail.replace("\x00", "")[:_LONGEST_DETAIL],
        "due_at": at + verdict.wait_s,
        "ended_at": None if waits else at,
    }
    mine = and_(c.id == delivery.id, c.claimed_by == holder)
    return tx.execute(update(webhook_deliveries).where(mine).values(**values)).rowcount == 1


def has_claims(tx: Connection) -> bool:
    c = webhook_deliveries.c
    claimed = select(c.id).where(c.state == DeliveryState.WAITING, c.claimed_by.is_not(None)).limit(1)
    return tx.execute(claimed).first() is not None


def release_all(tx: Connection) -> None:
    """For a server that knows that there is no other one."""
    c = webhook_deliveries.c
    tx.execute(update(webhook_deliveries).where(c.claimed_by.is_not(None)).values(claimed_by=None))


def delete_ended(tx: Connection, *, before: float, limit: int) -> int:
    c = webhook_deliveries.c
    old = select(c.id).where(c.ended_at < before).limit(limit)
    return tx.execute(delete(webhook_deliveries).where(c.id.in_(old))).rowcount


def load_states(tx: Connection, webhook_id: str, *, most: int = 1_000) -> Sequence[Mapping[str, Any]]:
    """What became of its deliveries, newest first."""
    c = webhook_deliveries.c
    query = select(webhook_deliveries).where(c.webhook_id == webhook_id).order_by(c.created_at.desc(), c.id)
    query = query.limit(most)
    return [dict(row) for row in tx.execute(query).mappings()]


def _row(webhook_id: str, event: str, body: str, at: float) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "webhook_id": webhook_id,
        "event": event,
        "body": body,
        "state": DeliveryState.WAITING,
        "attempts": 0,
        "due_at": at,
        "created_at": at,
    }
