"""The route of the queue."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from windlass.api.answers import json_of
from windlass.api.context import Context
from windlass.wire.queue import QueueView

router = APIRouter(prefix="/api/queue", tags=["queue"])


@router.get("", response_model=QueueView)
def queue(
    services: Context,
    project: Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00]*$")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 500,
) -> Response:
    """The runs that wait, in the order in which they would be served, with when each is likely to start and what it
    waits for; and what projects have. `project` narrows the runs, not the projects."""
    return json_of(services.runs.queue(project=project, limit=limit))
