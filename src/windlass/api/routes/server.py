"""Routes of the server itself: health, what it is, and the nodes it can use."""

from __future__ import annotations

import os

from fastapi import APIRouter

import windlass
from windlass.api.context import Context
from windlass.wire.checks import CheckView
from windlass.wire.cluster import AsideRequest, AsideView, ClusterView, Health, Info, NodeRef

open_router = APIRouter(tags=["server"])
router = APIRouter(prefix="/api", tags=["server"])


@open_router.get("/health")
def health(services: Context) -> Health:
    """Answers when the database does. Needs no token."""
    return Health(status="ok", version=windlass.__version__, controller=services.controller_state())


@router.get("/info")
def info(services: Context) -> Info:
    return Info(
        version=windlass.__version__,
        database=services.db.describe(),
        home=services.home,
        auth=services.token is not None,
        pid=os.getpid(),
        started_at=services.started_at,
        pass_ms=[round(1000 * took_s, 3) for took_s in services.pass_times_s()],
    )


@router.get("/doctor")
def doctor(services: Context) -> list[CheckView]:
    """Whether database, blobs, engines and clocks are as they should be. May take seconds where they are not."""
    return services.checks()


@router.get("/cluster")
def cluster(services: Context) -> ClusterView:
    return services.runs.cluster()


@router.post("/cluster/set-aside")
def set_aside(request: AsideRequest, services: Context) -> AsideView:
    """Place nothing on a node any more; what runs there goes on."""
    return services.runs.set_aside(request)


@router.post("/cluster/give-back")
def give_back(request: NodeRef, services: Context) -> AsideView:
    """Use a node again that was set aside, by hand or because it failed. The answer says why it was."""
    return services.runs.give_back(request)
