"""Routes that search runs and put them side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from windlass.api.answers import json_of
from windlass.api.context import Context
from windlass.api.routes.runs import Ref
from windlass.wire.comparison import Comparison
from windlass.wire.search import FoundPage, FoundRun

router = APIRouter(prefix="/api", tags=["runs"])

_One = Annotated[str, Query(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
Refs = Annotated[
    list[_One], Query(alias="run", min_length=2, max_length=20, description="ids, beginnings of them, or names")
]


@router.get("/compare")
def compare(run: Refs, services: Context, everything: bool = False) -> Comparison:
    """What differs between runs: params, metrics, data, code, environment, cost; with `everything`, the rest too."""
    return services.overview.compare(run, everything=everything)


@router.get("/compare/code", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def code(run: Annotated[list[_One], Query(min_length=2, max_length=2)], services: Context) -> Response:
    """A unified diff from the code of the first run to that of the second."""
    return Response(services.overview.code_diff(*run), media_type="text/plain; charset=utf-8")


@router.get("/search", response_model=FoundPage)
def search(
    services: Context,
    where: Annotated[str | None, Query(max_length=10_000, pattern=r"^[^\x00]*$")] = None,
    order: Annotated[list[_One] | None, Query(max_length=10)] = None,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=5_000)] = 100,
    view: Annotated[
        str | None, Query(min_length=1, max_length=64, pattern=r"^[^\x00]*$", description="a saved view's name")
    ] = None,
    project: Annotated[
        str | None, Query(max_length=200, pattern=r"^[^\x00]*$", description="only runs of it; the view may be its own")
    ] = None,
) -> Response:
    """Runs by what is known of them, the newest first, with params, newest metrics and tags; those of MLflow's clients
    too. `where`: `metrics.loss < 0.5 and state = 'succeeded' and submitted > '7d'`; `order`: `metrics.loss desc`."""
    found = services.overview.search(
        where=where, order=order or (), cursor=cursor, limit=limit, view=view, project=project
    )
    return json_of(found)


@router.get("/search/{ref:path}", response_model=FoundRun)
def find(ref: Ref, services: Context) -> Response:
    """What a search says of one run, which may be one that an MLflow client made. Its name may have slashes, which
    other routes cannot tell from their own."""
    return json_of(services.overview.find(ref))
