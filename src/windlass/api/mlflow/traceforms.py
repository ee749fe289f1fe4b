"""Traces and assessments in the JSON of MLflow's messages, read and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from windlass.api.mlflow.fields import Asked, anything, invalid, items, read_fields, text, thing, words, yes_or_no
from windlass.api.mlflow.times import read_duration, read_time, render_duration, render_time
from windlass.core.errors import InvalidInput
from windlass.core.storable import is_storable, storable_text
from windlass.traces.spans import render_otel
from windlass.traces.types import STATES, Assessment, StoredSpan, Trace

_SOURCES = ("SOURCE_TYPE_UNSPECIFIED", "HUMAN", "LLM_JUDGE", "CODE")
_SOURCE_RUN = "mlflow.assessment.sourceRunId"
# Tags that are ours alone to set.
PROTECTED_TAGS = frozenset(
    {
        "mlflow.artifactLocation",
        "mlflow.trace.spansLocation",
        "mlflow.trace.archiveLocation",
        "mlflow.trace.archivalFailure",
    }
)
REMOVABLE_TAGS = frozenset({"mlflow.artifactLocation", "mlflow.trace.archivalFailure"})


def enum(name: str, value: Any, names: tuple[str, ...]) -> str:
    """By name or by number."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    if value in names:
        return str(value)
    raise InvalidInput(invalid(name, value))


def read_trace(given: Mapping[str, Any]) -> tuple[Trace, str]:
    """And the experiment it belongs to."""
    asked = read_fields(
        {
            "trace_id": text(),
            "client_request_id": text(),
            "trace_location": thing(),
            "request_preview": words(),
            "response_preview": words(),
            "request_time": anything(),
            "execution_duration": anything(),
            "state": anything(),
            "trace_metadata": thing(),
            "tags": thing(),
            "assessments": items(),
        },
        given,
    )
    trace = Trace(
        id=asked["trace_id"],
        experiment_id=0,
        request_ms=read_time("request_time", asked["request_time"]) if "request_time" in asked.given else 0,
        duration_ms=_duration(asked),
        state=enum("state", asked["state"], STATES) if "state" in asked.given else STATES[0],
        client_request_id=asked.or_none("client_request_id"),
        request_preview=asked.or_none("request_preview"),
        response_preview=asked.or_none("response_preview"),
        metadata=texts_of("trace_metadata", asked["trace_metadata"]),
        tags=texts_of("tags", asked["tags"]),
        assessments=tuple(read_assessment(one, asked["trace_id"]) for one in asked["assessments"]),
    )
    return trace, location_of(asked["trace_location"]) or ""


def _duration(asked: Asked) -> int | None:
    value = asked["execution_duration"]
    return read_duration("execution_duration", value) if value is not None else None


def location_of(given: Any) -> str | None:
    """The id of the experiment that it names."""
    experiment = given.get("mlflow_experiment") or given.get("mlflowExperiment") if isinstance(given, Mapping) else None
    if not isinstance(experiment, Mapping):
        return None
    return str(experiment.get("experiment_id") or experiment.get("experimentId") or "")


def texts_of(name: str, given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(value, str) for value in given.values()):
        raise InvalidInput(invalid(name, given))
    if not all(map(is_storable, given)):
        raise InvalidInput(f"a key of '{name}' holds a NUL or half of a character, which no database can keep")
    return {key: storable_text(value) for key, value in given.items()}


def render_trace(trace: Trace) -> dict[str, Any]:
    optional = {
        "client_request_id": trace.client_request_id,
        "request_preview": trace.request_preview,
        "response_preview": trace.response_preview,
        "execution_duration": render_duration(trace.duration_ms) if trace.duration_ms is not None else None,
        "trace_metadata": dict(trace.metadata) or None,
        "tags": dict(trace.tags) or None,
        "assessments": [render_assessment(one) for one in trace.assessments] or None,
    }
    return {
        "trace_id": trace.id,
        "trace_location": {
            "type": "MLFLOW_EXPERIMENT",
            "mlflow_experiment": {"experiment_id": str(trace.experiment_id)},
        },
        "request_time": render_time(trace.request_ms),
        "state": trace.state,
        **{name: value for name, value in optional.items() if value is not None},
    }


def render_old_trace(trace: Trace) -> dict[str, Any]:
    """As clients before MLflow 3 know it."""
    return {
        "request_id": trace.id,
        "experiment_id": str(trace.experiment_id),
        "timestamp_ms": trace.request_ms,
        "execution_time_ms": trace.duration_ms or 0,
        "status": "TRACE_STATUS_UNSPECIFIED" if trace.state == STATES[0] else trace.state,
        "request_metadata": [{"key": key, "value": value} for key, value in trace.metadata.items()],
        "tags": [{"key": key, "value": value} for key, value in trace.tags.items()],
    }


def render_span(span: StoredSpan) -> dict[str, Any]:
    return render_otel(json.loads(span.content))


_ASSESSMENT = {
    "assessment_id": text(),
    "assessment_name": text(),
    "span_id": text(),
    "trace_id": text(),
    "source": thing(),
    "create_time": anything(),
    "last_update_time": anything(),
    "feedback": thing(),
    "expectation": thing(),
    "issue": thing(),
    "rationale": words(),
    "metadata": thing(),
    "overrides": text(),
    "valid": yes_or_no(),
}


def read_assessment(given: Any, trace_id: str) -> Assessment:
    if not isinstance(given, Mapping):
        raise InvalidInput(invalid("assessment", given))
    asked = read_fields(_ASSESSMENT, given)
    kind = next((name for name in ("expectation", "feedback", "issue") if name in asked.given), None)
    if kind is None:
        raise InvalidInput("Unknown assessment type: None")
    value, error = read_value(kind, asked[kind])
    source = read_fields({"source_type": anything(), "source_id": text()}, asked["source"] or {})
    metadata = texts_of("metadata", asked["metadata"])
    created, updated = (
        read_time(name, asked[name]) if name in asked.given else 0 for name in ("create_time", "last_update_time")
    )
    return Assessment(
        id=asked["assessment_id"],
        trace_id=trace_id,
        name=asked["assessment_name"],
        kind=kind,
        value=value,
        error=error,
        created_ms=created,
        updated_ms=updated,
        source_type=enum("source_type", source["source_type"], _SOURCES) if source["source_type"] else _SOURCES[0],
        source_id=source["source_id"] or None,
        run_id=metadata.get(_SOURCE_RUN),
        span_id=asked["span_id"] or None,
        rationale=asked["rationale"] or None,
        overrides=(asked["overrides"] or None) if kind == "feedback" else None,
        valid=asked["valid"] if "valid" in asked.given else True,
        metadata=metadata or None,
    )


def read_value(kind: str, given: Mapping[str, Any]) -> tuple[Any, Mapping[str, str] | None]:
    """The value, and the error of a feedback that has none."""
    if kind == "issue":
        return {"issue_name": given.get("issue_name") or given.get("issueName") or ""}, None
    serialized = given.get("serialized_value") or given.get("serializedValue")
    if kind == "expectation" and serialized:
        told = read_fields({"serialization_format": anything(), "value": anything()}, serialized)
        form = told["serialization_format"]
        if form != "JSON_FORMAT":
            raise InvalidInput(f"Unknown serialization format: {form}. Only JSON_FORMAT is supported.")
        return _loaded(told["value"] if "value" in told.given else "null"), None
    if kind == "expectation" and given.get("value") is None:
        raise InvalidInput("The `value` field must be specified.")
    error = given.get("error")
    if error is None:
        return given.get("value"), None
    read = read_fields({"error_code": words(), "error_message": words(), "stack_trace": words()}, error)
    return given.get("value"), {"error_code": read["error_code"], **{key: read[key] for key in read if read[key]}}


def _loaded(given: Any) -> Any:
    try:
        return json.loads(given)
    except (TypeError, ValueError, RecursionError):
        raise InvalidInput(invalid("serialized_value", given)) from None


def render_assessment(one: Assessment) -> dict[str, Any]:
    optional = {
        "assessment_id": one.id or None,
        "span_id": one.span_id,
        "rationale": one.rationale,
        "metadata": {key: str(value) for key, value in one.metadata.items()} if one.metadata else None,
        "overrides": one.overrides or None,
    }
    return {
        "assessment_name": one.name,
        "trace_id": one.trace_id,
        "source": {"source_type": one.source_type, **({"source_id": one.source_id} if one.source_id else {})},
        "create_time": render_time(one.created_ms),
        "last_update_time": render_time(one.updated_ms),
        one.kind: _value(one),
        "valid": one.valid,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _value(one: Assessment) -> dict[str, Any]:
    if one.kind == "issue":
        return {"issue_name": one.value["issue_name"]}
    if one.kind == "expectation" and isinstance(one.value, list | dict):
        return {"serialized_value": {"serialization_format": "JSON_FORMAT", "value": json.dumps(one.value)}}
    return {"value": one.value, **({"error": dict(one.error)} if one.error else {})}
