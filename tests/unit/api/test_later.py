"""Routes that are loaded late, and the short way to them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import httpx
from fastapi import Request, Response
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route

from windlass.api.later import Later, Shortcut
from windlass.core.errors import WindlassError


class Watched:
    """An application, and which of its requests came past the short way."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self.loads = 0
        self.long_ways: list[str] = []
        self._routes = routes
        later = Later(["/late"], self._load)
        self._app = Starlette(routes=[later])
        self._app.router.routes[0] = later
        self._short = Shortcut(self._watch, later)

    def ask(self, *asked: tuple[str, str]) -> list[tuple[int, str]]:
        return asyncio.run(self._ask(asked))

    async def _ask(self, asked: Sequence[tuple[str, str]]) -> list[tuple[int, str]]:
        transport = httpx.ASGITransport(app=self._short, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answers = [await client.request(method, path) for method, path in asked]
        return [(answer.status_code, answer.text) for answer in answers]

    async def _watch(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        self.long_ways.append(f"{scope['method']} {scope['path']}")
        await self._app(scope, receive, send)

    def _load(self) -> Sequence[BaseRoute]:
        self.loads += 1
        return self._routes


async def _tell(request: Request) -> Response:
    return Response(f"{request.method} {dict(request.path_params)} {request.query_params}")


async def _fail(_request: Request) -> Response:
    raise WindlassError("no")


def test_what_is_loaded_is_found_by_its_path_alone() -> None:
    watched = Watched([Route("/late/one", _tell, methods=["GET", "POST"])])
    told = watched.ask(("GET", "/late/one"), ("POST", "/late/one?a=b"), ("GET", "/late/one"))
    assert told == [(200, "GET {} "), (200, "POST {} a=b"), (200, "GET {} ")]
    assert watched.long_ways == ["GET /late/one"]
    assert watched.loads == 1


def test_names_in_paths_and_methods_that_nobody_takes_go_through_the_routes() -> None:
    watched = Watched([Route("/late/one", _tell, methods=["GET"]), Route("/late/{name}", _tell)])
    told = watched.ask(("GET", "/late/one"), ("GET", "/late/two"), ("DELETE", "/late/one"), ("GET", "/nowhere"))
    assert [status for status, _ in told] == [200, 200, 405, 404]
    assert told[1][1] == "GET {'name': 'two'} "
    assert watched.long_ways[1:] == ["GET /late/two", "DELETE /late/one", "GET /nowhere"]


def test_of_two_routes_with_one_path_the_first_answers_either_way() -> None:
    async def other(_request: Request) -> Response:
        return Response("other")

    watched = Watched([Route("/late/one", _tell), Route("/late/one", other)])
    long, short = watched.ask(("GET", "/late/one"), ("GET", "/late/one"))
    assert watched.long_ways == ["GET /late/one"]
    assert long == short == (200, "GET {} ")


def test_an_endpoint_that_fails_leaves_the_next_one_alone() -> None:
    watched = Watched([Route("/late/bad", _fail), Route("/late/one", _tell)])
    told = watched.ask(("GET", "/late/one"), ("GET", "/late/bad"), ("GET", "/late/one"))
    assert [status for status, _ in told] == [200, 500, 200]


def test_what_is_loaded_is_no_matter_of_collecting_garbage() -> None:
    thing = [0]

    def is_looked_at() -> bool:
        return any(one is thing for one in gc.get_objects())

    async def tell(_request: Request) -> Response:
        return Response(str(is_looked_at()))

    assert is_looked_at()
    try:
        assert Watched([Route("/late", tell)]).ask(("GET", "/late")) == [(200, "False")]
    finally:
        gc.unfreeze()
