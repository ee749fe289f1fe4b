"""Server-sent events: the loop around `Follower.look`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from windlass.api.context import Services
from windlass.runs.following import Channels, Follower, News, Position

_LOOK_EVERY_S = 0.1
_IDLE_LOOK_EVERY_S = 0.3
_IDLE_AFTER = 50  # looks without news
_PING_EVERY_S = 10.0


def follow(services: Services, ref: str, channels: Channels, last_event_id: str | None) -> StreamingResponse:
    """Errors (unknown run, bad position) are raised here, before the stream begins."""
    run_id = services.runs.resolve_id(ref)
    position = Position.decode(last_event_id) if last_event_id else None
    follower = Follower(services.db, services.runs, run_id, channels, position)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(services, follower), media_type="text/event-stream", headers=headers)


async def _stream(services: Services, follower: Follower) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    quiet_since, idle_looks = loop.time(), 0
    while not services.closing:
        news = await run_in_threadpool(follower.look)
        if news:
            yield "".join(render_event(item) for item in news)
            quiet_since, idle_looks = loop.time(), 0
        elif loop.time() - quiet_since > _PING_EVERY_S:
            yield ": ping\n\n"
            quiet_since = loop.time()
        if follower.ended:
            return
        if follower.behind:
            continue
        idle_looks += 1
        await asyncio.sleep(_LOOK_EVERY_S if idle_looks < _IDLE_AFTER else _IDLE_LOOK_EVERY_S)


def render_event(item: News) -> str:
    """JSON has no raw line breaks, so one `data:` line is enough."""
    identity = f"id: {item.id}\n" if item.id else ""
    return f"event: {item.kind}\n{identity}data: {json.dumps(item.data)}\n\n"
