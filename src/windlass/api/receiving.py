"""Taking in a body of any size: it is hashed and written by a thread while more of it comes, at most so far behind."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from windlass.blobs.contract import Intake

T = TypeVar("T")
_PIECE_BYTES = 1 << 20
# The thread and the event loop go on without each other this far: on a busy machine each hand-over takes milliseconds.
_MOST_BEHIND_BYTES = 8 << 20
_MOST_TOGETHER = 4


async def receive(request: Request, begin: Callable[[], Intake], end: Callable[[Intake], T]) -> T:
    """Write the request's body to what `begin` gives and hand that to `end`, both in the thread pool. What a client
    that goes away has sent is forgotten."""
    waiting: deque[bytes] = deque()
    received = 0
    intake: Intake | None = None
    writing: asyncio.Future[None] | None = None
    try:
        async for chunk in request.stream():
            waiting.append(chunk)
            received += len(chunk)
            if received < _PIECE_BYTES:
                continue
            if intake is None:
                intake = await run_in_threadpool(begin)
            behind = received - intake.size_bytes
            if writing is not None and (writing.done() or behind >= _MOST_BEHIND_BYTES):
                await asyncio.shield(writing)
                writing = None
            if writing is None and behind >= _PIECE_BYTES:
                writing = asyncio.ensure_future(run_in_threadpool(_write, intake, waiting))
        if writing is not None:
            await asyncio.shield(writing)
        return await run_in_threadpool(_finish, intake, begin, waiting, end)
    finally:
        if writing is not None:
            writing.add_done_callback(partial(_close, intake))  # not before: a thread may be in it
        elif intake is not None:
            intake.close()


async def put_together(request: Request, complete: Callable[[], T]) -> T:
    """Make a file of its parts, which may take minutes. A few threads do that and no others: those of the pool are for
    calls that are answered at once."""
    state = request.app.state
    if not hasattr(state, "putting_together"):
        state.putting_together = CapacityLimiter(_MOST_TOGETHER)
    return await to_thread.run_sync(complete, limiter=state.putting_together)


def _close(intake: Intake | None, writing: asyncio.Future[None]) -> None:
    if not writing.cancelled():
        writing.exception()  # who wanted to know has been told
    if intake is not None:
        intake.close()


def _write(intake: Intake, waiting: deque[bytes]) -> None:
    """All that waits, also what comes meanwhile. Pieces are joined: with many small ones, this thread and the event
    loop's would wait for each other at every one."""
    while waiting:
        pieces, size = [], 0
        while waiting and size < _PIECE_BYTES:
            pieces.append(waiting.popleft())
            size += len(pieces[-1])
        intake.write(b"".join(pieces))


def _finish(intake: Intake | None, begin: Callable[[], Intake], rest: deque[bytes], end: Callable[[Intake], T]) -> T:
    """What is small comes here as a whole, and goes through one thread once."""
    intake = intake or begin()
    try:
        _write(intake, rest)
        return end(intake)
    finally:
        intake.close()
