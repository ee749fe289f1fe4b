"""Calls of label schemas: the questions that reviewers of traces are asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.answers import page_answer
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import (
    Asked,
    Field,
    number,
    one_of,
    read_fields,
    text,
    texts,
    thing,
    whole,
    within,
    yes_or_no,
)
from windlass.core.errors import InvalidInput
from windlass.evaluation.labels import AnswerInput, LabelSchema
from windlass.experiments.rules import MOST_RESULTS

calls = Calls()

_DEFAULT_PAGE = 100
_ID = text(required=True)
_EXPERIMENT = text(required=True)
_KINDS = ("FEEDBACK", "EXPECTATION")
_FORMS: Mapping[str, Mapping[str, Field]] = {
    "pass_fail": {"positive_label": text(), "negative_label": text()},
    "categorical": {"options": texts(), "multi_select": yes_or_no()},
    "numeric": {"min_value": number(), "max_value": number()},
    "text": {"max_length": whole()},
}
_OPTIONAL = ("min_value", "max_value", "max_length")
PAGE_SIZE = within(1, MOST_RESULTS, f"max_results must be between 1 and {MOST_RESULTS}.")


@calls.post(
    "/mlflow/label-schemas/create",
    3,
    experiment_id=_EXPERIMENT,
    name=text(required=True),
    type=one_of(*_KINDS, first=1, required=True),
    input=thing(required=True),
    instruction=text(),
    enable_comment=yes_or_no(),
)
def create(services: Services, asked: Asked) -> Mapping[str, Any]:
    schema = services.labels.create(
        asked["experiment_id"],
        name=asked["name"],
        kind=asked["type"].lower(),
        input=_input(asked["input"]),
        instruction=asked.or_none("instruction"),
        comment=asked["enable_comment"],
    )
    return {"label_schema": _schema(schema)}


@calls.get("/mlflow/label-schemas/get", 3, schema_id=_ID)
def get(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"label_schema": _schema(services.labels.get(asked["schema_id"]))}


@calls.get("/mlflow/label-schemas/get-by-name", 3, experiment_id=_EXPERIMENT, name=text(required=True))
def get_named(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"label_schema": _schema(services.labels.get_named(asked["experiment_id"], asked["name"]))}


@calls.get(
    "/mlflow/label-schemas/list",
    3,
    experiment_id=_EXPERIMENT,
    max_results=whole(PAGE_SIZE, empty=_DEFAULT_PAGE),
    page_token=text(),
)
def list_all(services: Services, asked: Asked) -> Mapping[str, Any]:
    found, token = services.labels.list(asked["experiment_id"], most=asked["max_results"], token=asked["page_token"])
    return page_answer("label_schemas", [_schema(one) for one in found], token)


@calls.patch(
    "/mlflow/label-schemas/update",
    3,
    schema_id=_ID,
    name=text(),
    instruction=text(),
    enable_comment=yes_or_no(),
    input=thing(),
)
def update(services: Services, asked: Asked) -> Mapping[str, Any]:
    schema = services.labels.update(
        asked["schema_id"],
        name=asked.or_none("name"),
        instruction=asked.or_none("instruction"),
        comment=asked.or_none("enable_comment"),
        input=_input(asked["input"]) if "input" in asked.given else None,
    )
    return {"label_schema": _schema(schema)}


@calls.delete("/mlflow/label-schemas/delete", 3, schema_id=_ID)
def delete(services: Services, asked: Asked) -> None:
    services.labels.delete(asked["schema_id"])


def _input(given: Mapping[str, Any]) -> AnswerInput:
    forms = [form for form in _FORMS if given.get(form) is not None]
    if len(forms) != 1:
        raise InvalidInput(
            "Label schema `input` must have exactly one of `pass_fail`, `categorical`, `numeric`, or `text` set;"
            f" got {', '.join(forms) or 'an empty oneof'}."
        )
    asked = read_fields(_FORMS[forms[0]], given[forms[0]])
    limits = {name: asked[name] for name in _FORMS[forms[0]] if name in asked.given or name not in _OPTIONAL}
    return AnswerInput(form=forms[0], limits=limits)


def _schema(one: LabelSchema) -> dict[str, Any]:
    return {
        "schema_id": one.id,
        "experiment_id": str(one.experiment_id),
        "name": one.name,
        "type": one.kind.upper(),
        **({} if one.instruction is None else {"instruction": one.instruction}),
        "enable_comment": one.comment,
        "input": {one.input.form: dict(one.input.limits)},
        "created_at": one.created_ms,
        "last_updated_at": one.updated_ms,
        "is_default": one.is_default,
    }
