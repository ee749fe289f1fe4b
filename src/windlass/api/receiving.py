"""Taking in a body of any size: it is written and hashed in a thread while more of it comes, a piece at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from windlass.blobs.contract import Intake

T = TypeVar("T")
_PIECE_BYTES = 2 << 20  # on a busy machine, handing over takes longer than writing


async def receive(request: Request, begin: Callable[[], Intake], end: Callable[[Intake], T]) -> T:
    """Write the request's body to what `begin` gives and hand that to `end`, both in the thread pool. What a client
    that goes away has sent is forgotten."""
    pieces: list[bytes] = []
    size = 0
    intake: Intake | None = None
    writing: asyncio.Future[None] | None = None
    try:
        async for chunk in request.stream():
            if chunk:
                pieces.append(chunk)
                size += len(chunk)
            if size < _PIECE_BYTES:
                continue
            if intake is None:
                intake = await run_in_threadpool(begin)
            if writing is not None:
                await asyncio.shield(writing)
            writing = asyncio.ensure_future(run_in_threadpool(_write, intake, pieces))
            pieces, size = [], 0
        if writing is not None:
            await asyncio.shield(writing)
        return await run_in_threadpool(_finish, intake, begin, pieces, end)
    finally:
        if writing is not None:
            writing.add_done_callback(partial(_close, intake))  # not before: a thread may be in it


def _close(intake: Intake | None, writing: asyncio.Future[None]) -> None:
    if not writing.cancelled():
        writing.exception()  # who wanted to know has been told
    if intake is not None:
        intake.close()


def _write(intake: Intake, pieces: list[bytes]) -> None:
    """At once: with many small ones, this thread and the event loop's would wait for each other all the time."""
    if pieces:
        intake.write(b"".join(pieces))


def _finish(intake: Intake | None, begin: Callable[[], Intake], rest: list[bytes], end: Callable[[Intake], T]) -> T:
    """What is small comes here as a whole, and goes through one thread once."""
    intake = intake or begin()
    try:
        _write(intake, rest)
        return end(intake)
    finally:
        intake.close()
