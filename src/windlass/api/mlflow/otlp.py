"""OpenTelemetry's way in: spans that any exporter sends by OTLP over HTTP. The experiment is named in a header."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Route

from windlass.api.mlflow.calls import guarded, services_of
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
        body = await request.body()
        found = await run_in_threadpool(_read, kind, body, request.headers.get("Content-Encoding", "").lower())
    except _Refused as refused:
        return Response(json.dumps({"detail": refused.detail}), status_code=refused.status, media_type=_JSON)
    run_id = request.headers.get("x-mlflow-run-id")
    await run_in_threadpool(services_of(request).traces.log_spans, experiment_id, found, run_id=run_id)
    return Response(b"{}" if kind == _JSON else b"", media_type=kind)


def _read(kind: str, body: bytes, encoding: str) -> list[Span]:
    try:
        return _READERS[kind](_unpacked(body, encoding))
    except Unconvertible:
        raise _Refused(422, "Cannot convert OpenTelemetry span to MLflow span") from None
    except (Malformed, ValueError, RecursionError) as error:
        detail = "Invalid OpenTelemetry format"
        raise _Refused(400, f"{detail} - no spans found" if "no spans" in str(error) else detail) from None


def _unpacked(body: bytes, encoding: str) -> bytes:
    try:
        match encoding:
            case "" | "identity":
                return body
            case "gzip":
                return gzip.decompress(body)
            case "deflate":
                return _inflated(body)
    except (OSError, EOFError, zlib.error):
        raise _Refused(400, f"Failed to decompress {encoding} payload") from None
    raise _Refused(400, f"Unsupported Content-Encoding: {encoding}")


def _inflated(body: bytes) -> bytes:
    try:
        return zlib.decompress(body)
    except zlib.error:
        return zlib.decompress(body, -zlib.MAX_WBITS)  # some clients leave the header out


routes: list[BaseRoute] = [
    Route("/v1/traces", guarded(_export), methods=["POST"], include_in_schema=False),
]
