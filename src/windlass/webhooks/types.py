"""Webhooks, and what becomes of each delivery."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WebhookStatus(StrEnum):
    ACTIVE = "ACTIVE"
    DISABLED = "DISABLED"


class DeliveryState(StrEnum):
    WAITING = "waiting"  # or just being sent, if it is claimed
    DELIVERED = "delivered"
    FAILED = "failed"  # refused, or tried often enough
    DROPPED = "dropped"  # its webhook was switched off meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    id: str
    name: str
    description: str | None
    url: str
    status: WebhookStatus
    secret: bytes | None  # sealed
    created_at: float
    updated_at: float
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event on its way to one webhook."""

    id: str
    webhook_id: str
    event: str
    body: str
    attempts: int  # that have failed
    due_at: float
    claimed_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of sending once: an answer, or why there was none."""

    status: int | None = None
    body: str = ""
    retry_after_s: float | None = None
    error: str | None = None
    hopeless: bool = False  # trying again would not help

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300
