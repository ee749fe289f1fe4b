"""Routes that put runs side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from windlass.api.context import Context
from windlass.wire.comparison import Comparison

router = APIRouter(prefix="/api/compare", tags=["runs"])

_One = Annotated[str, Query(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
Refs = Annotated[
    list[_One], Query(alias="run", min_length=2, max_length=20, description="ids, beginnings of them, or names")
]


@router.get("")
def compare(run: Refs, services: Context, everything: bool = False) -> Comparison:
    """What differs between runs: params, metrics, data, code, environment, cost; with `everything`, the rest too."""
    return services.runs.compare(run, everything=everything)


@router.get("/code", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def code(run: Annotated[list[_One], Query(min_length=2, max_length=2)], services: Context) -> Response:
    """A unified diff from the code of the first run to that of the second."""
    return Response(services.runs.code_diff(*run), media_type="text/plain; charset=utf-8")
