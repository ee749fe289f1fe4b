"""Routes for agents on nodes elsewhere. They show their node's own token, not a user's."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from windlass.api.answers import json_of
from windlass.api.context import Context
from windlass.core.errors import InvalidInput, TooLarge
from windlass.nodes.archive import agent_zip
from windlass.nodes.service import Sent
from windlass.wire import nodes as wire

_MOST_REPORT_BYTES = 8 << 20
_HELLO_PATIENCE_S = 10.0
_HELLO_LOOK_S = (0.05, 1.0)  # at first, and at most

Attempt = Annotated[str, Path(min_length=1, max_length=48, pattern=r"^[0-9A-Za-z._-]+$")]
Rank = Annotated[int, Path(ge=0, lt=1_000_000)]


async def require_node_token(attempt: Attempt, rank: Rank, request: Request, services: Context) -> None:
    _, _, token = request.headers.get("Authorization", "").partition(" ")
    services.nodes.check_token(token.strip(), attempt, rank)


# The agents are ours and talk to the server of their own version: no part of the documented interface.
open_router = APIRouter(prefix="/api/nodes", include_in_schema=False)
router = APIRouter(
    prefix="/api/nodes/{attempt}/{rank}", include_in_schema=False, dependencies=[Depends(require_node_token)]
)


@open_router.get("/agent.zip", response_class=Response)
async def agent(request: Request) -> Response:
    """The agent's code, which is public. Needs no token."""
    found = agent_zip()
    headers = {"ETag": found.etag}
    if request.headers.get("If-None-Match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.data, media_type="application/zip", headers=headers)


@router.post("/hello", response_class=Response)
async def hello(attempt: Attempt, rank: Rank, body: wire.Hello, services: Context) -> Response:
    """200 with the plan, or 202 after a while if other nodes are still missing. 409: another process is this node."""
    await run_in_threadpool(services.nodes.introduce, attempt, rank, body)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _HELLO_PATIENCE_S
    pause_s, most_s = _HELLO_LOOK_S
    while True:
        answer = await run_in_threadpool(services.nodes.welcome, attempt, rank, body.incarnation)
        if isinstance(answer, wire.Welcome):
            services.arrivals.announce(attempt)
            return json_of(answer)
        if services.closing or loop.time() >= deadline:
            patience = wire.Patience(missing=answer[:100])
            return Response(patience.model_dump_json(), status_code=202, media_type="application/json")
        await services.arrivals.wait(attempt, pause_s)
        pause_s = min(most_s, pause_s * 1.5)


@router.get("/code", response_class=Response)
def code(attempt: Attempt, rank: Rank, services: Context) -> Response:
    return StreamingResponse(services.nodes.code(attempt, rank), media_type="application/x-tar")


@router.post("/report", response_class=Response)
async def report(attempt: Attempt, rank: Rank, request: Request, services: Context) -> Response:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_REPORT_BYTES:
            raise TooLarge(f"a report is over {_MOST_REPORT_BYTES} bytes", hint="send it in several")
    head, sent = _parse(bytes(body))
    return json_of(await run_in_threadpool(services.nodes.report, attempt, rank, head, sent))


def _parse(body: bytes) -> tuple[wire.ReportHead, Sent]:
    line, _, data = body.partition(b"\n")
    try:
        head = wire.ReportHead.model_validate_json(line)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:10]]
        raise InvalidInput(f"the head of the report cannot be read: {'; '.join(problems)}") from error
    if sum(part.size for part in head.files) != len(data):
        named = sum(part.size for part in head.files)
        raise InvalidInput(f"the report names {named} bytes of files and has {len(data)}")
    sent, at = [], 0
    for part in head.files:
        sent.append((part, data[at : at + part.size]))
        at += part.size
    return head, sent
