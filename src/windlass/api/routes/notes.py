"""Routes of what people write on runs and projects: tags, notes, groups."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from windlass.api.context import Context
from windlass.api.routes.runs import Ref
from windlass.wire.annotations import GroupList, NoteRequest, NoteView, TagsRequest, TagsView

router = APIRouter(prefix="/api", tags=["runs"])

Project = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


@router.post("/runs/{ref}/tags")
def set_tags(ref: Ref, request: TagsRequest, services: Context) -> TagsView:
    """Set tags of a run, or remove them; those of MLflow's clients too, by their ids."""
    return services.annotations.set_tags(ref, request.tags, where=request.where)


@router.get("/runs/{ref}/note")
def note(ref: Ref, services: Context) -> NoteView:
    return services.annotations.note(ref)


@router.post("/runs/{ref}/note")
def set_note(ref: Ref, request: NoteRequest, services: Context) -> NoteView:
    """Replace the note of a run. MLflow's clients see it as the run's description."""
    return services.annotations.set_note(ref, request.text)


@router.get("/projects/{project}/note")
def project_note(project: Project, services: Context) -> NoteView:
    return services.annotations.project_note(project)


@router.post("/projects/{project}/note")
def set_project_note(project: Project, request: NoteRequest, services: Context) -> NoteView:
    """Replace the note of a project: of the experiment that MLflow's clients see."""
    return services.annotations.set_project_note(project, request.text)


@router.get("/groups")
def groups(
    services: Context, project: Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00]*$")] = None
) -> GroupList:
    """Groups of runs, those with the newest runs first."""
    return GroupList(groups=services.annotations.groups(project=project))
