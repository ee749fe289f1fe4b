"""Calls of assessments of traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, anything, read_fields, text, thing, words
from windlass.api.mlflow.traceforms import read_assessment, read_value, render_assessment, texts_of
from windlass.traces.service import Revision

calls = Calls()

_ONE = "/mlflow/traces/{trace_id}/assessments/{assessment_id}"


@calls.post("/mlflow/traces/{trace_id}/assessments", 3, trace_id=text(), assessment=thing(required=True))
def create(services: Services, asked: Asked) -> Mapping[str, Any]:
    assessment = read_assessment(asked["assessment"], asked["trace_id"])
    return {"assessment": render_assessment(services.traces.create_assessment(assessment))}


@calls.get(_ONE, 3, trace_id=text(), assessment_id=text())
def get(services: Services, asked: Asked) -> Mapping[str, Any]:
    found = services.traces.get_assessment(asked["trace_id"], asked["assessment_id"])
    return {"assessment": render_assessment(found)}


@calls.patch(
    _ONE,
    3,
    trace_id=text(),
    assessment_id=text(),
    assessment=thing(required=True),
    update_mask=anything(required=True),
)
def update(services: Services, asked: Asked) -> Mapping[str, Any]:
    revision = _revision(asked["assessment"], _masked(asked["update_mask"]))
    changed = services.traces.update_assessment(asked["trace_id"], asked["assessment_id"], revision)
    return {"assessment": render_assessment(changed)}


@calls.delete(_ONE, 3, trace_id=text(), assessment_id=text())
def delete(services: Services, asked: Asked) -> None:
    services.traces.delete_assessment(asked["trace_id"], asked["assessment_id"])


def _masked(given: Any) -> set[str]:
    """Names as protobuf writes masks, `assessmentName,rationale`, or listed."""
    listed = given.get("paths", []) if isinstance(given, Mapping) else str(given).split(",")
    snake = ("".join(f"_{char.lower()}" if char.isupper() else char for char in name) for name in listed)
    return set(snake)


def _revision(given: Mapping[str, Any], names: set[str]) -> Revision:
    kind = next((name for name in ("expectation", "feedback") if name in names), None)
    asked = read_fields(
        {
            "assessment_name": text(),
            "expectation": thing(),
            "feedback": thing(),
            "rationale": words(),
            "metadata": thing(),
        },
        given,
    )
    value, error = read_value(kind, asked[kind] or {}) if kind else (None, None)
    return Revision(
        name=asked["assessment_name"] if "assessment_name" in names else None,
        kind=kind,
        value=value,
        error=error,
        rationale=asked["rationale"] if "rationale" in names else None,
        metadata=texts_of("metadata", asked["metadata"]) if "metadata" in names else None,
    )
