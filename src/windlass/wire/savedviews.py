"""Searches that have a name: what to look for, in which order, and what to show of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from windlass.wire.runs import Wire

_Text = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[^\x00]*$")]


class ViewRequest(Wire):
    where: str | None = Field(None, max_length=10_000, pattern=r"^[^\x00]*$", description="as a search has it")
    order: list[_Text] = Field(default_factory=list, max_length=10, description="such as `metrics.loss desc`")
    columns: list[_Text] = Field(default_factory=list, max_length=100, description="such as `params.lr`, `cost_usd`")
    description: str | None = Field(None, max_length=1_000, pattern=r"^[^\x00]*$")


class SavedView(Wire):
    name: str
    project: str | None = Field(description="it shows this project's runs only; null: all runs")
    where: str | None
    order: list[str]
    columns: list[str]
    description: str | None
    updated_at: float


class ViewList(Wire):
    views: list[SavedView]
