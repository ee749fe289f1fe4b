"""Routes of the server itself: health, what it is, and the nodes it can use."""

from __future__ import annotations

import os

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

import windlass
from windlass.api.context import Context
from windlass.wire.checks import CheckView
from windlass.wire.cluster import AsideRequest, AsideView, ClusterView, Health, Info, NodeRef

open_router = APIRouter(tags=["server"])
router = APIRouter(prefix="/api", tags=["server"])


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Windlass</title></head>
<body style="font-family: sans-serif; max-width: 40em; margin: 3em auto; line-height: 1.5">
<h1>Windlass {version}</h1>
<p>This is a server that runs training programs and keeps their record. It has no web pages yet.</p>
<p>The command line shows what it has: <code>windlass ps</code>, <code>windlass show ID</code>,
<code>windlass search</code>; the ID is what stands behind <code>/runs/</code> in a link of MLflow's client.</p>
<p><a href="/docs">The HTTP API</a></p>
</body></html>
"""


@open_router.get("/", response_class=HTMLResponse, include_in_schema=False)
def front_page() -> str:
    """Where the links lead that MLflow's client prints. Needs no token, and says nothing of anybody's."""
    return _PAGE.format(version=windlass.__version__)


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
