"""Traces and assessments as they are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.core.errors import InvalidInput
from windlass.core.storable import storable_text

TRACE_NAME = "mlflow.traceName"
SPANS_LOCATION = "mlflow.trace.spansLocation"
ARTIFACT_LOCATION = "mlflow.artifactLocation"
IN_DATABASE = "TRACKING_STORE"
LINKED_PROMPTS = "mlflow.linkedPrompts"

SOURCE_RUN = "mlflow.sourceRun"
SIZE_STATS = "mlflow.trace.sizeStats"
TOKEN_USAGE = "mlflow.trace.tokenUsage"
TRACE_COST = "mlflow.trace.cost"
TRACE_USER = "mlflow.trace.user"
TRACE_SESSION = "mlflow.trace.session"
# Set once a client has said all about the trace: what its spans say later does not change that.
FINALIZED = "mlflow.trace.infoFinalized"

LONGEST_NAME = 250
STATES = ("STATE_UNSPECIFIED", "OK", "ERROR", "IN_PROGRESS")
UNFINISHED = ("STATE_UNSPECIFIED", "IN_PROGRESS")
# Of the years 1 to 9999: what lies outside cannot be shown as a date.
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    id: str
    trace_id: str
    name: str
    kind: str  # feedback, expectation or issue
    value: Any  # of an issue: its name
    error: Mapping[str, str] | None
    created_ms: int
    updated_ms: int
    source_type: str
    source_id: str | None
    run_id: str | None
    span_id: str | None
    rationale: str | None
    overrides: str | None
    valid: bool
    metadata: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    id: str
    experiment_id: int
    request_ms: int
    duration_ms: int | None
    state: str
    client_request_id: str | None = None
    request_preview: str | None = None
    response_preview: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    assessments: tuple[Assessment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSpan:
    id: str
    parent_id: str | None
    start_ns: int
    content: str


def check_time(name: str, ms: int) -> None:
    if not FIRST_MS <= ms <= LAST_MS:
        raise InvalidInput(f"{name} is in milliseconds since 1970, of a year from 1 to 9999, not {ms}")


def storable(text: str | None) -> str | None:
    """PostgreSQL has no text with a zero in it, and nobody has one with half a pair of surrogates."""
    return storable_text(text) if text else text


def weigh(value: Any) -> tuple[float | None, bool]:
    """A value of an assessment as a number, and whether it is one. Yes, no and booleans count as 1 and 0."""
    if isinstance(value, bool):
        return float(value), False
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            return None, False
        return (number, True) if math.isfinite(number) else (None, False)
    if isinstance(value, str) and value.strip().lower() in ("yes", "no"):
        return float(value.strip().lower() == "yes"), False
    return None, False
