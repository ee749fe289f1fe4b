"""Routes that are loaded when the first of them is asked for: most servers start more often than anybody asks for all
that they can do. From then on those without names in their path are found by it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from windlass.core import garbage


class Later(BaseRoute):
    """`prefixes`: of their paths, which no other route has."""

    def __init__(self, prefixes: Sequence[str], load: Callable[[], Sequence[BaseRoute]]) -> None:
        self._prefixes = tuple(prefixes)
        self._load = load
        self._router: Router | None = None
        self.plain: Mapping[str, Route] = {}  # those that are loaded, by their path

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_ours = scope["type"] == "http" and scope["path"].startswith(self._prefixes)
        return (Match.FULL if is_ours else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            # Two at once load the same; modules are loaded once whoever asks.
            routes = list(await run_in_threadpool(self._load))
            self._router = Router(routes=routes, redirect_slashes=False)
            self.plain = _plain(routes)
            garbage.set_aside()
        await self._router(scope, receive, send)


def _plain(routes: Sequence[BaseRoute]) -> dict[str, Route]:
    found: dict[str, Route] = {}
    for route in routes:
        if isinstance(route, Route) and "{" not in route.path:
            found.setdefault(route.path, route)  # of two with one path the first answers, as in a router
    return found


class Shortcut:
    """Middleware that hands a request to its endpoint as soon as its path is known. Looking through all routes, and
    what is done around each of them, takes several times as long as logging a point. The endpoints answer errors
    themselves; what they do not take is left to the routes."""

    def __init__(self, app: ASGIApp, later: Later) -> None:
        self._app = app
        self._later = later

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._later.plain.get(scope["path"]) if scope["type"] == "http" else None
        if route is None or scope["method"] not in (route.methods or ()):
            await self._app(scope, receive, send)
            return
        response = await route.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)
