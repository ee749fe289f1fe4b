"""Which event a deed in the registry is to those who listen, and what they are told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from windlass.registry.types import PROMPT_TAG, PROMPT_TEXT_TAG, PROMPT_TYPE_TAG, ModelVersion, NewVersion, marks_prompt


class Announcement(NamedTuple):
    event: str
    data: Mapping[str, Any]


def model_created(name: str, tags: Mapping[str, str], description: str | None) -> Announcement:
    if marks_prompt(tags):
        data = {"name": name, "tags": _without(tags, PROMPT_TAG, PROMPT_TYPE_TAG), "description": description}
        return Announcement("prompt.created", data)
    data = {"name": name, "tags": dict(tags), "description": description}
    return Announcement("registered_model.created", data)


def version_created(new: NewVersion, made: ModelVersion) -> Announcement:
    told = {"name": new.name, "version": str(made.version), "description": new.description or None}
    if marks_prompt(new.tags):
        tags = _without(new.tags, PROMPT_TEXT_TAG, PROMPT_TAG, PROMPT_TYPE_TAG)
        template = new.tags.get(PROMPT_TEXT_TAG)
        return Announcement("prompt_version.created", {**told, "template": template, "tags": tags})
    about = {"source": new.source, "run_id": new.run_id or None, "tags": dict(new.tags)}
    return Announcement("model_version.created", {**told, **about})


def version_tag_set(name: str, version: int, key: str, value: str, *, is_prompt: bool) -> Announcement:
    event = "prompt_version_tag.set" if is_prompt else "model_version_tag.set"
    return Announcement(event, {"name": name, "version": str(version), "key": key, "value": value})


def version_tag_deleted(name: str, version: int, key: str, *, is_prompt: bool) -> Announcement:
    event = "prompt_version_tag.deleted" if is_prompt else "model_version_tag.deleted"
    return Announcement(event, {"name": name, "version": str(version), "key": key})


def prompt_tag_set(name: str, key: str, value: str) -> Announcement:
    return Announcement("prompt_tag.set", {"name": name, "key": key, "value": value})


def prompt_tag_deleted(name: str, key: str) -> Announcement:
    return Announcement("prompt_tag.deleted", {"name": name, "key": key})


def alias_created(name: str, alias: str, version: int, *, is_prompt: bool) -> Announcement:
    event = "prompt_alias.created" if is_prompt else "model_version_alias.created"
    return Announcement(event, {"name": name, "alias": alias, "version": str(version)})


def alias_deleted(name: str, alias: str, *, is_prompt: bool) -> Announcement:
    event = "prompt_alias.deleted" if is_prompt else "model_version_alias.deleted"
    return Announcement(event, {"name": name, "alias": alias})


def _without(tags: Mapping[str, str], *keys: str) -> dict[str, str]:
    return {key: value for key, value in tags.items() if key not in keys}
