"""What a webhook can be told of: `entity.action`, with an example of what is told. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from windlass.core.errors import InvalidInput

_MODEL: dict[str, Any] = {
    "name": "example_model",
    "tags": {"example_key": "example_value"},
    "description": "An example registered model",
}
_VERSION: dict[str, Any] = {
    "name": "example_model",
    "version": "1",
    "source": "models:/123",
    "run_id": "abcd1234abcd5678",
    "tags": {"example_key": "example_value"},
    "description": "An example model version",
}
_PROMPT: dict[str, Any] = {**_MODEL, "name": "example_prompt", "description": "An example prompt"}
_PROMPT_VERSION: dict[str, Any] = {
    "name": "example_prompt",
    "version": "1",
    "template": "Hello {{name}}!",
    "tags": {"example_key": "example_value"},
    "description": "An example prompt version",
}
_KEY = {"key": "example_key"}
_TAG = {**_KEY, "value": "example_value"}
_ALIAS = {"alias": "example_alias"}

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "registered_model.created": _MODEL,
    "model_version.created": _VERSION,
    "model_version_tag.set": {"name": "example_model", "version": "1", **_TAG},
    "model_version_tag.deleted": {"name": "example_model", "version": "1", **_KEY},
    "model_version_alias.created": {"name": "example_model", **_ALIAS, "version": "1"},
    "model_version_alias.deleted": {"name": "example_model", **_ALIAS},
    "prompt.created": _PROMPT,
    "prompt_version.created": _PROMPT_VERSION,
    "prompt_tag.set": {"name": "example_prompt", **_TAG},
    "prompt_tag.deleted": {"name": "example_prompt", **_KEY},
    "prompt_version_tag.set": {"name": "example_prompt", "version": "1", **_TAG},
    "prompt_version_tag.deleted": {"name": "example_prompt", "version": "1", **_KEY},
    "prompt_alias.created": {"name": "example_prompt", **_ALIAS, "version": "1"},
    "prompt_alias.deleted": {"name": "example_prompt", **_ALIAS},
    # Nothing here has such budgets: clients may ask for it, and will hear nothing.
    "budget_policy.exceeded": {
        "budget_policy_id": "bp-abc123",
        "budget_unit": "USD",
        "budget_amount": 100.0,
        "current_spend": 105.5,
        "duration_unit": "MONTHS",
        "duration_value": 1,
        "target_scope": "WORKSPACE",
        "workspace": "default",
        "window_start": 1_704_067_200_000,
    },
}

_RUN: dict[str, Any] = {"run_id": "r-2b3c4d5f6g", "attempt": 1, "message": "an example", "data": {}}

_RULE: dict[str, Any] = {"kind": "rule", "rule": 0, "metric": "loss", "value": 25.0, "step": 120, "then": "alert"}

# Of runs: MLflow's clients know nothing of these, and would not bear to see them.
RUN_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "run.submitted": {**_RUN, "attempt": None},
    "run.started": _RUN,
    "run.retrying": _RUN,
    "run.preempting": _RUN,
    "run.alert": {**_RUN, "message": "rule 1 at step 120: loss is 25, above 20", "data": _RULE},
    "run.succeeded": _RUN,
    "run.failed": _RUN,
    "run.cancelled": _RUN,
}
ALL_EXAMPLES: Mapping[str, Mapping[str, Any]] = {**EXAMPLES, **RUN_EXAMPLES}


def check_events(events: Sequence[str]) -> None:
    """Raises InvalidInput."""
    for event in events:
        if event not in ALL_EXAMPLES:
            raise InvalidInput(f"unknown event {event!r}; known: {', '.join(ALL_EXAMPLES)}")


def event_named(entity: str, action: str) -> str:
    """Raises InvalidInput."""
    event = f"{entity}.{action}"
    if event not in EXAMPLES:
        actions = sorted(known.partition(".")[2] for known in EXAMPLES if known.partition(".")[0] == entity)
        if not actions:
            known = ", ".join(dict.fromkeys(known.partition(".")[0] for known in EXAMPLES))
            raise InvalidInput(f"Invalid entity '{entity}' of a webhook event. Valid entities are: {known}")
        raise InvalidInput(f"Invalid action '{action}' for entity '{entity}'. Valid actions are: {actions}")
    return event


def render_body(event: str, data: Mapping[str, Any], *, at: float) -> str:
    entity, _, action = event.partition(".")
    timestamp = datetime.fromtimestamp(at, UTC).isoformat()
    return json.dumps({"entity": entity, "action": action, "timestamp": timestamp, "data": dict(data)})
