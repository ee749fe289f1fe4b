"""What spans that arrive make of their traces: rows to write, and what changes of each trace. Pure.

Spans of one trace come in several batches and in any order, some of them twice, before or after the client has said all
about the trace itself.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windlass.traces.conventions import preview, translate
from windlass.traces.spans import (
    COST,
    INPUTS,
    MODEL,
    OUTPUTS,
    PROVIDER,
    SPAN_TYPE,
    STATUSES,
    USAGE,
    Span,
    load_json,
    render_content,
)
from windlass.traces.totals import COSTS, Said, number, said_of, total_cost, total_tokens
from windlass.traces.types import (
    ARTIFACT_LOCATION,
    FINALIZED,
    IN_DATABASE,
    SPANS_LOCATION,
    TOKEN_USAGE,
    TRACE_COST,
    TRACE_SESSION,
    TRACE_USER,
    UNFINISHED,
    StoredSpan,
    storable,
)

_TAG = "mlflow.traceTag."
# Ours to set: nobody's span may.
_OURS = (ARTIFACT_LOCATION, SPANS_LOCATION, "mlflow.trace.archiveLocation", "mlflow.trace.archivalFailure")
_SESSIONS = ("session.id", "gen_ai.conversation.id")
_NAME = re.compile(r"[/\w.\- :]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Spans of one trace that came together."""

    trace_id: str
    rows: list[dict[str, Any]]
    start_ms: int
    end_ms: int | None
    state: str | None  # of the root, if it is among them
    usage: list[Said]
    cost: list[Said]
    session: str | None
    user: str | None
    root: Mapping[str, str] | None  # attributes
    tags: Mapping[str, str]

    @property
    def ids(self) -> set[str]:
        return {row["id"] for row in self.rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What there is of a trace."""

    request_ms: int
    duration_ms: int | None
    state: str
    request_preview: str | None
    response_preview: str | None
    metadata: Mapping[str, str]
    spans: Sequence[StoredSpan] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    columns: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


def gather(arrived: Iterable[Span]) -> list[Batch]:
    by_trace: defaultdict[str, dict[str, Span]] = defaultdict(dict)
    for span in arrived:
        by_trace[span.trace][span.id] = translate(span)
    return [_batch(trace_id, list(found.values())) for trace_id, found in sorted(by_trace.items())]


def _batch(trace_id: str, found: list[Span]) -> Batch:
    ends = [span.end_ns for span in found if span.end_ns is not None]
    root = next((span for span in found if span.parent_id is None), None)
    tags = _resource_tags(found)
    if root is not None:
        tags |= _root_tags(root)
    return Batch(
        trace_id=trace_id,
        rows=[_row(trace_id, span) for span in found],
        start_ms=min(span.start_ns for span in found) // 1_000_000,
        end_ms=max(ends) // 1_000_000 if ends else None,
        state=None if root is None else "ERROR" if root.status == "STATUS_CODE_ERROR" else "OK",
        usage=[said_of(span.id, span.parent, span.attributes.get(USAGE)) for span in found],
        cost=[said_of(span.id, span.parent, span.attributes.get(COST)) for span in found],
        session=_first_text(found, _SESSIONS),
        user=_first_text(found, ("user.id",)),
        root=root.attributes if root is not None else None,
        tags=tags,
    )


def _row(trace_id: str, span: Span) -> dict[str, Any]:
    cost = load_json(span.attribute(COST))
    costs = cost if isinstance(cost, dict) else {}
    return {
        "trace_id": trace_id,
        "id": span.id,
        "parent_id": span.parent,
        "name": storable(span.name),
        "type": storable(_text(span.attribute(SPAN_TYPE))),
        "status": STATUSES[span.status],
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "content": render_content(span),
        **{name: float(number(costs[name])) if name in costs else None for name in COSTS},
        "model_name": storable(_text(span.attribute(MODEL))),
        "model_provider": storable(_text(span.attribute(PROVIDER))),
    }


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _first_text(found: list[Span], keys: tuple[str, ...]) -> str | None:
    for span in found:
        for key in keys:
            if raw := span.attributes.get(key):
                said = load_json(raw)
                return said if isinstance(said, str) else raw
    return None


def _resource_tags(found: list[Span]) -> dict[str, str]:
    resource = next((span.resource for span in found if span.resource), {})
    said = {key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in resource.items()}
    return {
        key: value[:8000]
        for key, value in said.items()
        if not key.startswith(("telemetry.sdk.", "mlflow.")) and is_name(key)
    }


def _root_tags(root: Span) -> dict[str, str]:
    found = {}
    for name, raw in root.attributes.items():
        key = name.removeprefix(_TAG)
        if key != name and key not in _OURS and is_name(key):
            said = load_json(raw)
            found[key] = (said if isinstance(said, str) else raw)[:8000]
    return found


def is_name(key: str) -> bool:
    return 0 < len(key) <= 250 and _NAME.fullmatch(key) is not None


def first_columns(batch: Batch, experiment_id: int) -> dict[str, Any]:
    """Of a trace that nobody has spoken of yet."""
    return {
        "id": batch.trace_id,
        "experiment_id": experiment_id,
        "request_ms": batch.start_ms,
        "duration_ms": batch.end_ms - batch.start_ms if batch.end_ms is not None else None,
        "state": batch.state or "IN_PROGRESS",
    }


def decide_changes(batch: Batch, known: Known) -> Changes:
    finalized = FINALIZED in known.metadata
    columns: dict[str, Any] = {} if finalized else _times(batch, known)
    if known.state in UNFINISHED and batch.state:
        columns["state"] = batch.state
    if batch.root is not None:
        for column, key, role in (("request_preview", INPUTS, "user"), ("response_preview", OUTPUTS, "assistant")):
            if getattr(known, column) is None and (shown := preview(batch.root.get(key), role=role)):
                columns[column] = shown
    metadata: dict[str, str] = {}
    others = [span for span in known.spans if span.id not in batch.ids]
    if not (finalized and TOKEN_USAGE in known.metadata) and total_tokens(batch.usage):
        tokens = total_tokens([*batch.usage, *_said(others, USAGE)])
        metadata[TOKEN_USAGE] = json.dumps(tokens)
    if not (finalized and TRACE_COST in known.metadata) and total_cost(batch.cost):
        metadata[TRACE_COST] = json.dumps(total_cost([*batch.cost, *_said(others, COST)]))
    if batch.session and not finalized and TRACE_SESSION not in known.metadata:
        metadata[TRACE_SESSION] = batch.session
    if batch.user and TRACE_USER not in known.metadata:
        metadata[TRACE_USER] = batch.user
    return Changes(columns=columns, metadata=metadata, tags={**batch.tags, SPANS_LOCATION: IN_DATABASE})


def _times(batch: Batch, known: Known) -> dict[str, Any]:
    start = min(known.request_ms, batch.start_ms)
    columns: dict[str, Any] = {"request_ms": start}
    if batch.end_ms is not None:
        ended = known.request_ms + known.duration_ms if known.duration_ms is not None else batch.end_ms
        columns["duration_ms"] = max(ended, batch.end_ms) - start
    return columns


def _said(found: Sequence[StoredSpan], key: str) -> list[Said]:
    return [said_of(span.id, span.parent_id, json.loads(span.content)["attributes"].get(key)) for span in found]


def needs_spans(batch: Batch) -> bool:
    """Whether what is kept already has to be read: sums are over all spans of a trace."""
    return any(said.amounts is not None for said in (*batch.usage, *batch.cost))
