"""Calls of artifacts, and their bytes up and down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Route

from windlass.api.context import Services
from windlass.api.downloads import send
from windlass.api.mlflow.bodies import body_of
from windlass.api.mlflow.calls import Calls, Endpoint, guarded, render, services_of
from windlass.api.mlflow.errors import MlflowError, answer_error
from windlass.api.mlflow.fields import Asked, items, read_fields, text, whole, within
from windlass.api.mlflow.filenames import download_headers, safe_name, safe_path
from windlass.api.mlflow.owners import model_uri, run_uri, version_uri
from windlass.api.receiving import put_together, receive
from windlass.artifacts.types import Artifact, Content, Entry
from windlass.artifacts.uploads import MOST_PARTS
from windlass.blobs.contract import Intake
from windlass.core.errors import Conflict, InvalidInput, NotFound

calls = Calls()

_MOST_JSON_BYTES = 4 << 20  # parts, as many as there may be
_MOST_SENT_BYTES = 10 << 20  # through the call that is meant for pages
_NO_PRESIGNING = "Multipart download is not supported for the current artifact repository"


# ---- lists -----------------------------------------------------------------------------------------------------------


@calls.get("/mlflow/artifacts/list", run_id=text(required=True, also="run_uuid"), path=text(), page_token=text())
def list_of_run(services: Services, asked: Asked) -> Mapping[str, Any]:
    path = safe_path(asked["path"])
    root = run_uri(services, asked["run_id"])
    return {**_files(services.artifact_places.children(root, path)), "root_uri": root}


@calls.get("/mlflow/logged-models/{model_id}/artifacts/directories", model_id=text(), artifact_directory_path=text())
def list_of_model(services: Services, asked: Asked) -> Mapping[str, Any]:
    path = safe_path(asked["artifact_directory_path"])
    root = model_uri(services, asked["model_id"])
    return {**_files(services.artifact_places.children(root, path)), "root_uri": root}


@calls.get("/mlflow-artifacts/artifacts", path=text())
def list_of_all(services: Services, asked: Asked) -> Mapping[str, Any]:
    return _files(services.artifacts.children(safe_path(asked["path"])), names_only=True)


def _files(entries: Iterable[Entry], *, names_only: bool = False) -> dict[str, Any]:
    files = []
    for entry in entries:
        size = {} if entry.is_dir else {"file_size": entry.size_bytes}
        files.append({"path": entry.name if names_only else entry.path, "is_dir": entry.is_dir, **size})
    return {"files": files} if files else {}


# ---- uploads in parts ------------------------------------------------------------------------------------------------


async def _begin_parts(request: Request) -> Response:
    services, folder = services_of(request), safe_path(request.path_params["path"])
    fields = {
        "path": text(required=True),
        "num_parts": whole(within(0, MOST_PARTS, f"at most {MOST_PARTS} parts can be sent, and no fewer than none")),
    }
    asked = read_fields(fields, await _json(request))
    upload = await run_in_threadpool(services.uploads.begin, f"{folder}/{safe_name(asked['path'])}")
    # Clients send parts without the token: the id in the address is what lets them.
    base = f"{str(request.base_url).rstrip('/')}/api/2.0/mlflow-artifacts/mpu/parts/{upload.id}"
    credentials = [{"url": f"{base}/{number}", "part_number": number} for number in range(1, asked["num_parts"] + 1)]
    return render({"upload_id": upload.id, "credentials": credentials})


async def _put_part(request: Request) -> Response:
    """Without a token: so the upload is looked for before anything of the body is taken in."""
    services, upload_id = services_of(request), request.path_params["upload_id"]

    def end(intake: Intake) -> str:
        return services.uploads.put_part(upload_id, number, intake).digest

    try:
        number = _part_number(request.path_params["number"])
        await run_in_threadpool(services.uploads.check_awaited, upload_id, number)
        digest = await receive(request, services.artifacts.intake, end)
    except Exception as error:
        return answer_error(error)
    return Response(status_code=200, headers={"ETag": f'"{digest}"'})


def _part_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_PARTS))):
        raise InvalidInput(f"there is no part '{text[:20]}': they are numbered from 1 to {MOST_PARTS}")
    return int(text)


async def _complete_parts(request: Request) -> Response:
    services, folder = services_of(request), safe_path(request.path_params["path"])
    fields = {"path": text(required=True), "upload_id": text(required=True), "parts": items(required=True)}
    asked = read_fields(fields, await _json(request))
    path = f"{folder}/{safe_name(asked['path'])}"
    part = {"part_number": whole(required=True), "etag": text()}
    parts = []
    for given in asked["parts"]:
        if not isinstance(given, dict):
            raise InvalidInput("each of 'parts' is an object with 'part_number' and 'etag'")
        found = read_fields(part, given)
        parts.append((found["part_number"], found["etag"].strip('"')))

    def complete() -> Artifact:
        return services.uploads.complete(asked["upload_id"], path=path, parts=parts)

    await put_together(request, complete)
    return render(None)


async def _abort_parts(request: Request) -> Response:
    safe_path(request.path_params["path"])
    asked = read_fields({"path": text(required=True), "upload_id": text()}, await _json(request))
    safe_name(asked["path"])
    await run_in_threadpool(services_of(request).uploads.abort, asked["upload_id"])
    return render(None)


async def _json(request: Request) -> Mapping[str, Any]:
    raw = await body_of(request, _MOST_JSON_BYTES)
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


# ---- files -----------------------------------------------------------------------------------------------------------


async def _one_file(request: Request) -> Response:
    services, path = services_of(request), safe_path(request.path_params["path"])
    match request.method:
        case "PUT":
            return await _put(request, services, path)
        case "DELETE":
            if not path.strip("/"):
                raise InvalidInput("Invalid path")  # not everything at once
            await run_in_threadpool(services.artifacts.delete, path)
            return render(None)
        case _:
            return await _send(request, path, lambda: services.artifacts.open(path))


async def _put(request: Request, services: Services, path: str) -> Response:
    if not path or path.endswith("/"):
        raise InvalidInput("Artifact path must include a filename (cannot end with '/').")

    def end(intake: Intake) -> Artifact:
        try:
            return services.artifacts.put(path, intake)
        except Conflict as error:
            raise InvalidInput(error.message) from error

    await receive(request, services.artifacts.intake, end)
    return render(None)


async def _of_run(request: Request) -> Response:
    services, query = services_of(request), request.query_params
    path = safe_path(_needed(request, "path"))
    run_id = query.get("run_id") or query.get("run_uuid") or ""
    return await _send(request, path, lambda: services.artifact_places.open(run_uri(services, run_id), path))


async def _of_model(request: Request) -> Response:
    services = services_of(request)
    given = request.query_params.get("artifact_file_path")
    if not given:
        raise MlflowError("BAD_REQUEST", 'Request must include the "artifact_file_path" query parameter.')
    path, model_id = safe_path(given), request.path_params["model_id"]
    return await _send(request, path, lambda: services.artifact_places.open(model_uri(services, model_id), path))


async def _of_version(request: Request) -> Response:
    services, query = services_of(request), request.query_params
    path = safe_path(_needed(request, "path"))
    name, version = query.get("name", ""), query.get("version", "")
    return await _send(request, path, lambda: services.artifact_places.open(version_uri(services, name, version), path))


async def _send(request: Request, path: str, find: Callable[[], Content]) -> Response:
    try:
        content = await run_in_threadpool(find)
    except Conflict as error:
        raise InvalidInput(f"Artifact path refers to a directory, not a file: '{path}'") from error
    except NotFound as error:
        if error.message.startswith("there is no"):
            raise NotFound(f"No such artifact: '{path}'") from error
        raise
    return await send(request, content, download_headers(content.name))


async def _sent_by_page(request: Request) -> Response:
    services, query = services_of(request), request.query_params
    run_id = query.get("run_id") or query.get("run_uuid")
    if not run_id:
        raise InvalidInput("Request must specify run_uuid.")
    if not (given := query.get("path")):
        raise InvalidInput("Request must specify path.")
    path = safe_path(given)
    size = request.headers.get("Content-Length", "0")
    if size.isdecimal() and int(size) > _MOST_SENT_BYTES:
        raise InvalidInput("Artifact size is too large. Max size is 10MB.")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MOST_SENT_BYTES:
            raise InvalidInput("Artifact size is too large. Max size is 10MB.")
    if not data:
        raise InvalidInput("Request must specify data.")

    def put() -> None:
        services.artifact_places.put_bytes(run_uri(services, run_id), path, bytes(data))

    await run_in_threadpool(put)
    return render(None)


def _needed(request: Request, name: str) -> str:
    if name not in request.query_params:
        raise MlflowError("BAD_REQUEST", f"Request must specify {name}.")
    return request.query_params[name]


async def _not_presigned(request: Request) -> Response:
    safe_path(request.path_params.get("path", ""))
    raise MlflowError("NOT_IMPLEMENTED", _NO_PRESIGNING)


# What is streamed goes past the table of calls: `guarded` endpoints of their own.
def _streams() -> list[BaseRoute]:
    found: list[tuple[str, Endpoint, list[str]]] = [
        ("/get-artifact", guarded(_of_run), ["GET"]),
        ("/model-versions/get-artifact", guarded(_of_version), ["GET"]),
        ("//model-versions/get-artifact", guarded(_of_version), ["GET"]),  # as some clients put addresses together
    ]
    for api in ("/api/2.0", "/ajax-api/2.0"):
        own = f"{api}/mlflow-artifacts"
        found += [
            (f"{own}/artifacts/{{path:path}}", guarded(_one_file), ["GET", "PUT", "DELETE"]),
            (f"{own}/mpu/create/{{path:path}}", guarded(_begin_parts), ["POST"]),
            (f"{own}/mpu/complete/{{path:path}}", guarded(_complete_parts), ["POST"]),
            (f"{own}/mpu/abort/{{path:path}}", guarded(_abort_parts), ["POST"]),
            (f"{own}/mpu/parts/{{upload_id}}/{{number}}", _put_part, ["PUT"]),
            (f"{own}/presigned/{{path:path}}", guarded(_not_presigned), ["GET"]),
            (f"{api}/mlflow/upload-artifact", guarded(_sent_by_page), ["POST"]),
            (f"{api}/mlflow/logged-models/{{model_id}}/artifacts/files", guarded(_of_model), ["GET"]),
        ]
    return [Route(path, endpoint, methods=methods, include_in_schema=False) for path, endpoint, methods in found]


streams = _streams()
