"""Routes that are loaded when the first of them is asked for: most servers start more often than anybody asks for all
that they can do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Match, Router
from starlette.types import Receive, Scope, Send


class Later(BaseRoute):
    """`prefixes`: of their paths, which no other route has."""

    def __init__(self, prefixes: Sequence[str], load: Callable[[], Sequence[BaseRoute]]) -> None:
        self._prefixes = tuple(prefixes)
        self._load = load
        self._router: Router | None = None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_ours = scope["type"] == "http" and scope["path"].startswith(self._prefixes)
        return (Match.FULL if is_ours else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            # Two at once load the same; modules are loaded once whoever asks.
            self._router = Router(routes=list(await run_in_threadpool(self._load)), redirect_slashes=False)
        await self._router(scope, receive, send)
