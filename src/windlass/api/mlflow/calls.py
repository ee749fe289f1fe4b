"""A table of calls: method, path, what it takes, who answers. Each is had under `/api/N.0` and `/ajax-api/N.0`.

    calls = Calls()

    @calls.post("/mlflow/experiments/create", name=text(required=True))
    def create(services: Services, asked: Asked) -> Mapping[str, Any]: ...

Handlers run in the thread pool. FastAPI's own routes are passed by: they would validate in other words than MLflow's,
and take longer than many a call.
"""

from __future__ import annotations

import asyncio
import logging
import reprlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Route

from windlass.api.context import Services, check_token, sent_token
from windlass.api.mlflow.bodies import body_of
from windlass.api.mlflow.errors import MlflowError, answer_error
from windlass.api.mlflow.fields import Asked, Field, read_fields
from windlass.api.mlflow.jsontext import json_text, read_json
from windlass.api.mlflow.runaccess import check_path, check_values
from windlass.core.errors import InvalidInput, Unauthorized
from windlass.traces.service import Unfinished

log = logging.getLogger(__name__)
Answer: TypeAlias = Mapping[str, Any] | Response | None
Handler: TypeAlias = Callable[[Services, Asked], Answer]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    method: str
    path: str  # with {names} of fields that it carries
    version: int
    fields: Mapping[str, Field]
    handler: Handler


class Calls:
    """Calls of one capability, in the order in which they were added. `version` is that of the API: 2 or 3."""

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def get(self, path: str, version: int = 2, /, **fields: Field) -> Callable[[Handler], Handler]:
        return self._adding("GET", path, version, fields)

    def post(self, path: str, version: int = 2, /, **fields: Field) -> Callable[[Handler], Handler]:
        return self._adding("POST", path, version, fields)

    def patch(self, path: str, version: int = 2, /, **fields: Field) -> Callable[[Handler], Handler]:
        return self._adding("PATCH", path, version, fields)

    def delete(self, path: str, version: int = 2, /, **fields: Field) -> Callable[[Handler], Handler]:
        return self._adding("DELETE", path, version, fields)

    def put(self, path: str, version: int = 2, /, **fields: Field) -> Callable[[Handler], Handler]:
        return self._adding("PUT", path, version, fields)

    def answer(self, services: Services, method: str, path: str, given: Mapping[str, Any]) -> Answer:
        """What a call says, for somebody within the server. Raises what it raises."""
        call = next(call for call in self._calls if (call.method, call.path) == (method, path))
        return call.handler(services, read_fields(call.fields, given))

    def routes(self) -> list[BaseRoute]:
        """One for each path: Starlette would answer 405 at the first route of a path that lacks the method."""
        by_path: dict[str, dict[str, Call]] = {}
        for call in self._calls:
            for prefix in (f"/api/{call.version}.0", f"/ajax-api/{call.version}.0"):
                by_path.setdefault(prefix + call.path, {})[call.method] = call
        return [
            Route(path, guarded(_endpoint(calls)), methods=list(calls), include_in_schema=False)
            for path, calls in by_path.items()
        ]

    def _adding(
        self, method: str, path: str, version: int, fields: Mapping[str, Field]
    ) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self._calls.append(Call(method=method, path=path, version=version, fields=fields, handler=handler))
            return handler

        return add


def guarded(endpoint: Endpoint) -> Endpoint:
    """For whoever sent a token; errors become answers in MLflow's words."""

    async def answer(request: Request) -> Response:
        try:
            await check_access(request, services_of(request))
            return await endpoint(request)
        except (RecursionError, OverflowError, UnicodeEncodeError) as error:
            # JSON within JSON within JSON, numbers and characters that nobody can keep: whoever sent them is told.
            log.warning("a call of MLflow's API could not be answered", exc_info=error)
            return answer_error(InvalidInput(f"what was sent cannot be read or kept: {error}"))
        except Exception as error:
            return answer_error(error)

    return answer


async def check_access(request: Request, services: Services) -> None:
    """The server's token, or that of a run, which opens less. Raises Unauthorized, and MlflowError for what it does
    not open."""
    if services.token is None:
        return
    sent = sent_token(request).decode("ascii", "replace")
    if not services.run_tokens.looks_like_one(sent):
        check_token(request, services)
    elif not await run_in_threadpool(services.run_tokens.is_valid, sent):
        raise Unauthorized("the token is not that of a run that is running")
    else:
        request.state.run_id = own = sent.partition(".")[0]
        check_path(own, request.method, request.url.path)
        check_values(own, request.method, request.query_params)


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def render(answer: Answer) -> Response:
    if isinstance(answer, Response):
        return answer
    return Response(json_text(answer or {}), media_type="application/json")


def _endpoint(calls: Mapping[str, Call]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        call = calls["GET" if request.method == "HEAD" else request.method]
        raw = None if request.method == "GET" and request.url.query else await body_of(request)
        deadline: float | None = None
        while True:
            try:
                return await run_in_threadpool(_answer, request, call, raw)
            except Unfinished as error:
                # Waiting takes no thread away from others.
                deadline = deadline or time.monotonic() + error.patience_s
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(_LOOK_EVERY_S)

    return endpoint


def _answer(request: Request, call: Call, raw: bytes | None) -> Response:
    """In a thread, from the first byte to the last: long bodies would keep everybody else waiting."""
    given = _query(request, call.fields) if raw is None else _body(request, raw)
    asked = read_fields(call.fields, {**given, **request.path_params})
    if own := getattr(request.state, "run_id", None):
        check_values(own, request.method, asked)
    return render(call.handler(services_of(request), asked))


def _query(request: Request, fields: Mapping[str, Field]) -> dict[str, Any]:
    query = request.query_params
    return {name: query.getlist(name) if fields[name].many else query[name] for name in fields if name in query}


def _body(request: Request, raw: bytes) -> dict[str, Any]:
    """One that is JSON within JSON comes from old clients; `null` says nothing, as no body does. What cannot be read is
    not taken for empty: the call would be answered as if nothing had been asked for."""
    if not raw:
        return {}
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise MlflowError("INVALID_PARAMETER_VALUE", "Bad Request. Content-Type must be one of ['application/json'].")
    try:
        found = read_json(raw)
        if isinstance(found, str):
            found = read_json(found)
    except (ValueError, RecursionError) as error:
        raise MlflowError("BAD_REQUEST", f"the body cannot be read as JSON: {error}; send a JSON object") from None
    if found is not None and not isinstance(found, dict):
        raise MlflowError("BAD_REQUEST", f"the body is {reprlib.repr(found)}; send a JSON object")
    return found or {}
