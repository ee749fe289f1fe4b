"""Routes of searches that have a name."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from windlass.api.context import Context
from windlass.runs.savedviews import check_name
from windlass.wire.savedviews import SavedView, ViewList, ViewRequest

router = APIRouter(prefix="/api/views", tags=["runs"])

Name = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[^\x00]*$")]
Project = Annotated[
    str | None, Query(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", description="not given: of all runs")
]


@router.get("")
def list_views(services: Context, project: Project = None) -> ViewList:
    """All; with `project` those of it and those of all runs."""
    return ViewList(views=services.saved_views.list(project=project))


@router.get("/{name:path}")
def get(name: Name, services: Context, project: Project = None) -> SavedView:
    return services.saved_views.get(name, project)


@router.post("/{name:path}")
def save(name: Name, request: ViewRequest, services: Context, project: Project = None) -> SavedView:
    """Give a search a name, in place of one that has it. `/api/search?view=NAME` does it."""
    return services.saved_views.save(check_name(name), project, request)


@router.delete("/{name:path}", status_code=204)
def remove(name: Name, services: Context, project: Project = None) -> None:
    services.saved_views.remove(name, project)
