"""What of a version that another server has kept is to be changed here. Pure."""

from __future__ import annotations

from typing import Any

from windlass.core import marks
from windlass.core.marks import MARK_TAG
from windlass.registry.types import ModelVersion


def marked_tags(given: ModelVersion) -> dict[str, str]:
    """Its tags, and the mark of all that may change there."""
    facts = {*_facts(given).values(), *marks.tag_facts(given.tags)}
    return {**marks.unmarked(given.tags), MARK_TAG: marks.mark_of(facts)}


def decide_changes(held: ModelVersion, given: ModelVersion) -> tuple[dict[str, Any], dict[str, str]]:
    """Columns and tags. A version without a mark was not taken from there by us: it gets one, and stays as it is."""
    known = marks.read_mark(held.tags)
    mark = {MARK_TAG: marked_tags(given)[MARK_TAG]}
    if not known:
        return {}, mark
    columns = {name: getattr(given, name) for name, now in _facts(given).items() if now not in known}
    return columns, {**marks.changed_tags(given.tags, held.tags), **mark}


def _facts(version: ModelVersion) -> dict[str, str]:
    described = version.description or None
    return {"stage": marks.fact("stage", str(version.stage)), "description": marks.fact("description", described)}
