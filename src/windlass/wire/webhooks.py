"""HTTP bodies about webhooks."""

from __future__ import annotations

from pydantic import BaseModel, Field

from windlass.wire.strict import StrictModel


class WebhookRequest(StrictModel):
    name: str = Field(description="letters, digits, dots, underscores and hyphens; at most 63")
    url: str
    events: list[str] = Field(
        min_length=1, max_length=100, description="such as `run.failed` or `model_version.created`"
    )
    description: str | None = None
    secret: str | None = Field(default=None, description="signs what is sent; no answer contains it")


class TrialRequest(StrictModel):
    event: str | None = Field(default=None, description="not given: the first of its events")


class WebhookView(BaseModel):
    id: str
    name: str
    url: str
    events: list[str]
    description: str | None
    status: str
    created_at: float
    updated_at: float


class WebhookList(BaseModel):
    webhooks: list[WebhookView]
    next_token: str | None = None


class DeliveryView(BaseModel):
    id: str = Field(description="what the receiver sees as `X-MLflow-Delivery-Id`")
    event: str
    state: str = Field(description="waiting, delivered, failed or dropped")
    attempts: int = Field(description="how often it was sent")
    created_at: float
    due_at: float | None = Field(description="of one that waits: when it is sent next")
    ended_at: float | None
    response_status: int | None = Field(description="of the last answer")
    detail: str | None = Field(description="what went wrong")


class DeliveryList(BaseModel):
    deliveries: list[DeliveryView]


class TrialView(BaseModel):
    success: bool
    response_status: int | None
    response_body: str
    error: str | None
