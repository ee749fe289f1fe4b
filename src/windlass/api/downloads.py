"""Sending a file: whole, or the range that was asked for, never all of it in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from windlass.artifacts.types import Content

# Python reads no number of some thousand digits, and no file ends behind these.
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_SMALL_BYTES = 1 << 20


def decide_range(header: str | None, size: int) -> tuple[int, int] | None:
    """From where to before where; all of it if nothing, several ranges or nonsense is asked for, as RFC 9110 has it.
    None if there is nothing at that place. Pure."""
    found = _RANGE.fullmatch(header.strip().lower()) if header else None
    if found is None or found.groups() == ("", ""):
        return 0, size
    first, last = found.groups()
    if not first:
        return (max(0, size - int(last)), size) if int(last) and size else None
    start, end = int(first), min(int(last) + 1, size) if last else size
    if last and int(last) < start:
        return 0, size
    return (start, end) if start < size else None


async def send(request: Request, content: Content, headers: Mapping[str, str]) -> Response:
    """`headers` say what it is; those about ranges and versions are added."""
    tag = f'"{content.tag}"'
    told = {**headers, "ETag": tag, "Accept-Ranges": "bytes", "Cache-Control": "no-cache"}
    if tag in [given.strip() for given in request.headers.get("If-None-Match", "").split(",")]:
        return Response(status_code=304, headers=told)
    asked = request.headers.get("Range")
    if request.headers.get("If-Range", tag) != tag:
        asked = None  # it has changed: what the client has of it is of no use
    wanted = decide_range(asked, content.size_bytes)
    if wanted is None:
        return Response(status_code=416, headers={**told, "Content-Range": f"bytes */{content.size_bytes}"})
    start, end = wanted
    status = 200
    if (start, end) != (0, content.size_bytes):
        status = 206
        told["Content-Range"] = f"bytes {start}-{end - 1}/{content.size_bytes}"
    told["Content-Length"] = str(end - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=told)
    if end - start <= _SMALL_BYTES:
        return Response(await run_in_threadpool(_all, content, start, end), status_code=status, headers=told)
    pieces = await run_in_threadpool(content.read, start, end)
    return StreamingResponse(_ahead(pieces), status_code=status, headers=told)


def _all(content: Content, start: int, end: int) -> bytes:
    return b"".join(content.read(start, end))


async def _ahead(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """While a piece is on its way to the client, the next one is read."""

    def read() -> asyncio.Future[bytes]:
        return asyncio.ensure_future(run_in_threadpool(next, pieces, b""))

    reading = read()
    try:
        while piece := await asyncio.shield(reading):
            reading = read()
            yield piece
    finally:
        reading.add_done_callback(partial(_close, pieces))  # not before: a thread may be in it


def _close(pieces: Iterator[bytes], reading: asyncio.Future[bytes]) -> None:
    if not reading.cancelled():
        reading.exception()  # who wanted to know has been told
    if close := getattr(pieces, "close", None):
        close()
