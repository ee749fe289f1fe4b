"""Routes of runs: submit, list, look, change."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response

from windlass.api.answers import json_of
from windlass.api.context import Context
from windlass.wire import runs as wire

router = APIRouter(prefix="/api/runs", tags=["runs"])

Ref = Annotated[
    str,
    Path(min_length=1, max_length=200, pattern=r"^[^\x00]*$", description="id, a unique beginning of it, or name"),
]
Filter = Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00]*$")]
Key = Annotated[str | None, Header(max_length=200, pattern=r"^[\x20-\x7e]+$", description="makes a repeat harmless")]


@router.post("", status_code=201)
def submit(request: wire.SubmitRequest, services: Context, idempotency_key: Key = None) -> wire.RunView:
    """Submit a run. The same `Idempotency-Key` with the same body gives the same run, however often it is sent."""
    return services.runs.submit(request, idempotency_key=idempotency_key, user=None)


@router.get("", response_model=wire.RunPage)
def list_runs(
    services: Context,
    state: Annotated[list[str] | None, Query(max_length=20)] = None,
    project: Filter = None,
    name: Filter = None,
    tag: Annotated[str | None, Query(max_length=400, pattern=r'^[^\x00"\\]*$', description="KEY or KEY=VALUE")] = None,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """Runs, newest first. `next_cursor` of one page is the `cursor` of the next."""
    page = services.runs.page(states=state or [], project=project, name=name, tag=tag, cursor=cursor, limit=limit)
    return json_of(page)


@router.get("/{ref}", response_model=wire.RunView)
def show(ref: Ref, services: Context) -> Response:
    return json_of(services.runs.view(ref))


@router.get("/{ref}/attempts")
def attempts(ref: Ref, services: Context) -> wire.AttemptList:
    return services.runs.attempts(ref)


@router.get("/{ref}/why")
def why(ref: Ref, services: Context) -> wire.Why:
    """Why the run is in the state it is in: what it waits for, or how it ended."""
    return services.runs.why(ref)


@router.get("/{ref}/diff", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def diff(ref: Ref, services: Context) -> Response:
    """The uncommitted changes of the folder the run was submitted from."""
    return Response(services.runs.diff(ref), media_type="text/plain; charset=utf-8")


@router.post("/{ref}/cancel")
def cancel(ref: Ref, services: Context, request: wire.CancelRequest | None = None) -> wire.RunView:
    return services.runs.cancel(ref, grace_s=request.grace_s if request else None)


@router.post("/{ref}/resume")
def resume(ref: Ref, services: Context) -> wire.RunView:
    """Continue a failed or cancelled run under the same id, in the same working folder."""
    return services.runs.resume(ref)


@router.post("/{ref}/clone", status_code=201)
def clone(ref: Ref, services: Context, request: wire.CloneRequest | None = None) -> wire.RunView:
    """Submit a new run like this one, with the same code, and with changes if any are given."""
    return services.runs.clone(ref, request or wire.CloneRequest(), user=None)


@router.post("/{ref}/reproduce", status_code=201)
def reproduce(ref: Ref, services: Context, request: wire.ReproduceRequest | None = None) -> wire.Reproduction:
    """Submit the same run again: code, command, params, seed and sizes; and say what could not be pinned."""
    return services.runs.reproduce(ref, request or wire.ReproduceRequest(), user=None)


@router.get("/{ref}/pins")
def pins(ref: Ref, services: Context) -> wire.PinList:
    """What a reproduction would have the same for certain, and what is open. Submits nothing."""
    return services.runs.pins(ref)
