"""Nodes of an attempt that wait for each other: those at this server are woken when the last one has come, those at
others look again after a moment.
"""

from __future__ import annotations

import asyncio


class Arrivals:
    """For the event loop's thread only."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    async def wait(self, attempt_id: str, timeout_s: float) -> None:
        """Until all are said to be here, or the time is over."""
        mine = asyncio.get_running_loop().create_future()
        others = self._waiting.setdefault(attempt_id, set())
        others.add(mine)
        try:
            await asyncio.wait([mine], timeout=timeout_s)
        finally:
            others.discard(mine)
            if not others:
                self._waiting.pop(attempt_id, None)

    def announce(self, attempt_id: str) -> None:
        for waiting in self._waiting.pop(attempt_id, ()):
            if not waiting.done():
                waiting.set_result(None)
