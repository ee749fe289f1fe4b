"""OpenTelemetry's way in: spans that any exporter sends by OTLP over HTTP. The experiment is named in a header."""

from __future__ import annotations

import json
from collections.abc import Callable

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Route

from windlass.api.mlflow.bodies import body_of, unpacked
from windlass.api.mlflow.calls import guarded, services_of
from windlass.core.errors import InvalidInput, TooLarge
from windlass.traces.otlp import Unconvertible, read_json, read_protobuf
from windlass.traces.protobuf import Malformed
from windlass.traces.spans import Span

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_READERS: dict[str, Callable[[bytes], list[Span]]] = {_PROTOBUF: read_protobuf, _JSON: read_json}


class _Refused(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


async def _export(request: Request) -> Response:
    try:
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip()
        experiment_id = request.headers.get("x-mlflow-experiment-id")
        if experiment_id is None:
            raise _Refused(422, "the header x-mlflow-experiment-id is missing; it names the experiment")
        if kind not in _READERS:
            raise _Refused(400, f"Invalid Content-Type: {kind or None}. Expected: {_PROTOBUF} or {_JSON}")
        body = await body_of(request)
        found = await run_in_threadpool(_read, kind, body, request.headers.get("Content-Encoding", "").lower())
    except TooLarge as error:
        return Response(json.dumps({"detail": error.message}), status_code=413, media_type=_JSON)
    except _Refused as refused:
        return Response(json.dumps({"detail": refused.detail}), status_code=refused.status, media_type=_JSON)
    run_id = request.headers.get("x-mlflow-run-id")
    await run_in_threadpool(services_of(request).traces.log_spans, experiment_id, found, run_id=run_id)
    return Response(b"{}" if kind == _JSON else b"", media_type=kind)


def _read(kind: str, body: bytes, encoding: str) -> list[Span]:
    try:
        content = unpacked(body, encoding)
    except TooLarge:
        raise
    except InvalidInput as error:
        raise _Refused(400, error.message) from None
    try:
        return _READERS[kind](content)
    except Unconvertible:
        raise _Refused(422, "Cannot convert OpenTelemetry span to MLflow span") from None
    except (Malformed, ValueError, RecursionError) as error:
        detail = "Invalid OpenTelemetry format"
        raise _Refused(400, f"{detail} - no spans found" if "no spans" in str(error) else detail) from None


routes: list[BaseRoute] = [
    Route("/v1/traces", guarded(_export), methods=["POST"], include_in_schema=False),
]
