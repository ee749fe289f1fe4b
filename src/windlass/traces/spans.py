"""A span: as it arrives, as the JSON that is kept of it, and as OpenTelemetry's JSON that clients read.

What is kept has the form of MLflow's own trace files. Values of attributes are JSON texts in it, as its clients write
them, and searches look for texts in it: separators and escapes are part of the form.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.core.storable import storable_text

REQUEST_ID = "mlflow.traceRequestId"
SPAN_TYPE = "mlflow.spanType"
INPUTS = "mlflow.spanInputs"
OUTPUTS = "mlflow.spanOutputs"
USAGE = "mlflow.chat.tokenUsage"
COST = "mlflow.llm.cost"
MODEL = "mlflow.llm.model"
PROVIDER = "mlflow.llm.provider"

KINDS = (
    "SPAN_KIND_UNSPECIFIED",
    "SPAN_KIND_INTERNAL",
    "SPAN_KIND_SERVER",
    "SPAN_KIND_CLIENT",
    "SPAN_KIND_PRODUCER",
    "SPAN_KIND_CONSUMER",
)
STATUSES = {"STATUS_CODE_UNSET": "UNSET", "STATUS_CODE_OK": "OK", "STATUS_CODE_ERROR": "ERROR"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    name: str
    time_ns: int
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanLink:
    trace_id: bytes
    span_id: bytes
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    trace_id: bytes  # OpenTelemetry's
    span_id: bytes
    parent_id: bytes | None
    name: str
    kind: str
    start_ns: int
    end_ns: int | None
    status: str  # STATUS_CODE_*
    message: str
    attributes: Mapping[str, str]  # JSON texts
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    resource: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trace(self) -> str:
        """The trace's id as MLflow has it."""
        return trace_name(self.trace_id)

    @property
    def id(self) -> str:
        return self.span_id.hex()

    @property
    def parent(self) -> str | None:
        return self.parent_id.hex() if self.parent_id else None

    def attribute(self, key: str) -> Any:
        return load_json(self.attributes.get(key))


def trace_name(trace_id: bytes) -> str:
    return f"tr-{trace_id.hex():0>32}"


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def load_json(text: Any) -> Any:
    """What the text means, or the text itself."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def render_content(span: Span) -> str:
    """What is kept of it."""
    return storable_text(
        dump(
            {
                "trace_id": _base64(span.trace_id),
                "span_id": _base64(span.span_id),
                "parent_span_id": _base64(span.parent_id) if span.parent_id else None,
                "name": span.name,
                "kind": span.kind,
                "start_time_unix_nano": span.start_ns,
                "end_time_unix_nano": span.end_ns,
                "events": [
                    {"name": event.name, "time_unix_nano": event.time_ns, "attributes": dict(event.attributes)}
                    for event in span.events
                ],
                "status": {"code": span.status, "message": span.message},
                "attributes": dict(span.attributes),
                "links": [
                    {
                        "trace_id": trace_name(link.trace_id),
                        "span_id": link.span_id.hex(),
                        "attributes": dict(link.attributes) or None,
                    }
                    for link in span.links
                ],
            }
        )
    )


def render_otel(content: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept, as protobuf writes OpenTelemetry's span in JSON."""
    span: dict[str, Any] = {"trace_id": content["trace_id"], "span_id": content["span_id"]}
    if content.get("parent_span_id"):
        span["parent_span_id"] = content["parent_span_id"]
    span["name"] = content["name"]
    span["kind"] = content.get("kind") or KINDS[1]
    span["start_time_unix_nano"] = content["start_time_unix_nano"]
    if content.get("end_time_unix_nano"):
        span["end_time_unix_nano"] = content["end_time_unix_nano"]
    attributes = {key: load_json(value) for key, value in content.get("attributes", {}).items()}
    if attributes:
        span["attributes"] = _pairs(attributes)
    if events := content.get("events"):
        span["events"] = [_event(event) for event in events]
    if links := [link for link in map(_link, content.get("links", ())) if link]:
        span["links"] = links
    status = content.get("status") or {}
    span["status"] = {
        **({"message": status["message"]} if status.get("message") else {}),
        **({"code": status["code"]} if status.get("code") not in (None, "STATUS_CODE_UNSET") else {}),
    }
    return span


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"time_unix_nano": event["time_unix_nano"], "name": event["name"]}
    if attributes := event.get("attributes"):
        shown["attributes"] = _pairs(attributes)
    return shown


def _link(link: Mapping[str, Any]) -> dict[str, Any] | None:
    """None where an id is none of OpenTelemetry's: there is no way to say it in its format."""
    try:
        trace_id = bytes.fromhex(link["trace_id"].rpartition("/")[2].removeprefix("tr-"))
        span_id = bytes.fromhex(link["span_id"])
    except (ValueError, AttributeError):
        return None
    if len(trace_id) > 16 or len(span_id) > 8:
        return None
    shown: dict[str, Any] = {"trace_id": _base64(trace_id), "span_id": _base64(span_id)}
    if attributes := link.get("attributes"):
        shown["attributes"] = _pairs(attributes)
    return shown


def _pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in attributes.items()]


def _any_value(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"bool_value": value}
    if isinstance(value, str):
        return {"string_value": value}
    if isinstance(value, int):
        # More than 64 bits cannot be said as a number.
        return {"int_value": value} if -(2**63) <= value < 2**63 else {"string_value": str(value)}
    if isinstance(value, float):
        return {"double_value": _double(value)}
    if isinstance(value, list):
        return {"array_value": {"values": [_any_value(item) for item in value]} if value else {}}
    return {"kvlist_value": {"values": _pairs(value)} if value else {}}


def _double(value: float) -> float | str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
