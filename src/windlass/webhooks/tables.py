"""Tables of webhooks: who wants to hear of what, and what is on its way to them."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, LargeBinary, String, Table, Text, text

from windlass.db.metadata import Seconds, metadata

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("description", Text),
    Column("url", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("secret", LargeBinary),  # sealed
    Column("created_at", Seconds, nullable=False),
    Column("updated_at", Seconds, nullable=False),
)

webhook_events = Table(
    "webhook_events",
    metadata,
    Column("webhook_id", String(36), ForeignKey("webhooks.id", ondelete="CASCADE"), primary_key=True),
    Column("event", String(64), primary_key=True),
    Column("position", Integer, nullable=False),  # as its maker listed them
    Index("ix_webhook_events_event", "event"),
)

# An event becomes one row for each webhook that wants it, in the transaction that it happens in.
webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("webhook_id", String(36), ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
    Column("event", String(64), nullable=False),
    Column("body", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at", Seconds, nullable=False),
    Column("claimed_by", String(100)),  # the server that sends it now
    Column("response_status", Integer),
    Column("detail", Text),
    Column("created_at", Seconds, nullable=False),
    Column("ended_at", Seconds),
    Index("ix_webhook_deliveries_webhook", "webhook_id", "created_at"),
    Index(
        "ix_webhook_deliveries_waiting",
        "due_at",
        sqlite_where=text("state = 'waiting'"),
        postgresql_where=text("state = 'waiting'"),
    ),
    Index("ix_webhook_deliveries_ended", "ended_at"),
)
