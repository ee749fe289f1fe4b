"""What the registry holds: models, versions of them, and the stages that versions pass through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from windlass.core.errors import InvalidInput

# A prompt is a registered model that bears this tag with the value "true", and so do its versions.
PROMPT_TAG = "mlflow.prompt.is_prompt"
PROMPT_TEXT_TAG = "mlflow.prompt.text"
PROMPT_TYPE_TAG = "_mlflow_prompt_type"


class Stage(StrEnum):
    NONE = "None"
    STAGING = "Staging"
    PRODUCTION = "Production"
    ARCHIVED = "Archived"
    DELETED = "Deleted_Internal"  # of rows that only keep their number from being given again

    @classmethod
    def named(cls, text: str) -> Stage:
        """Whatever the case of its letters. Raises InvalidInput."""
        for stage in SHOWN_STAGES:
            if stage.lower() == text.lower():
                return stage
        known = ", ".join(SHOWN_STAGES)
        raise InvalidInput(f"Invalid Model Version stage: {text}. Value must be one of {known}.")


SHOWN_STAGES = (Stage.NONE, Stage.STAGING, Stage.PRODUCTION, Stage.ARCHIVED)
ACTIVE_STAGES = (Stage.STAGING, Stage.PRODUCTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    name: str
    version: int
    stage: Stage
    description: str | None
    source: str | None
    location: str | None
    run_id: str | None
    run_link: str | None
    model_id: str | None
    created_at: float
    updated_at: float
    tags: Mapping[str, str] = field(default_factory=dict)
    aliases: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredModel:
    name: str
    description: str | None
    created_at: float
    updated_at: float
    tags: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, int] = field(default_factory=dict)
    latest: Sequence[ModelVersion] = ()  # of each stage that it has versions in

    @property
    def is_prompt(self) -> bool:
        return marks_prompt(self.tags)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """What a version is to be made of; `run_id` and the like are empty where they were not given."""

    name: str
    source: str
    run_id: str | None = None
    run_link: str | None = None
    description: str | None = None
    model_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


def marks_prompt(tags: Mapping[str, str]) -> bool:
    return tags.get(PROMPT_TAG, "false").lower() == "true"
