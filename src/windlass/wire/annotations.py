"""Tags, notes and groups of runs."""

from __future__ import annotations

from pydantic import Field

from windlass.wire.runs import Wire


class TagsRequest(Wire):
    tags: dict[str, str | None] = Field(min_length=1, max_length=100, description="null removes a tag")
    where: dict[str, str] = Field(
        default_factory=dict, max_length=100, description="only if the run has these tags now; else 409"
    )


class TagsView(Wire):
    run_id: str
    tags: dict[str, str]


class NoteRequest(Wire):
    text: str = Field(max_length=20_000, description="Markdown, as MLflow shows it; empty: none any more")


class NoteView(Wire):
    of: str = Field(description="the run's id, or the project")
    text: str | None


class GroupView(Wire):
    name: str
    runs: int
    newest_at: float | None = Field(description="when its newest run was submitted")


class GroupList(Wire):
    groups: list[GroupView]
