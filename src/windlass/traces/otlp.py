"""Spans out of an OTLP export request, protobuf or JSON.

Unknown fields are passed over. Ids, names and times are taken as they are; values of attributes become JSON texts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from windlass.traces.protobuf import (
    Malformed,
    Value,
    bytes_of,
    double_of,
    fields_of,
    signed_of,
    text_of,
    whole_of,
)
from windlass.traces.spans import KINDS, REQUEST_ID, STATUSES, Span, SpanEvent, SpanLink, dump, load_json, trace_name

_STATUS_NAMES = tuple(STATUSES)


class Unconvertible(ValueError):
    """A span that lacks what it needs: an id."""


def read_protobuf(body: bytes) -> list[Span]:
    """Raises Malformed and Unconvertible. A request without any resource is no request."""
    resources = [bytes_of(value) for number, value in fields_of(body) if number == 1]
    if not resources:
        raise Malformed("no spans found")
    return [_finish(span) for resource in resources for span in _resource_spans(resource)]


def read_json(body: bytes) -> list[Span]:
    try:
        found = json.loads(body)
        resources = found.get("resourceSpans") or found.get("resource_spans")
        if not resources:
            raise Malformed("no spans found")
        return [_finish(span) for resource in resources for span in _json_resource_spans(resource)]
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise Malformed(f"not a trace: {error}") from None
    except json.JSONDecodeError as error:
        raise Malformed(str(error)) from None


def _finish(raw: Mapping[str, Any]) -> Span:
    trace_id, span_id, parent_id = raw.get("trace_id", b""), raw.get("span_id", b""), raw.get("parent_id") or None
    if not trace_id or not span_id:
        raise Unconvertible("a span without trace_id or span_id")
    if len(trace_id) > 16 or len(span_id) > 8:
        raise Unconvertible("an id of a span is too long")
    _check_kinds(raw)
    attributes = {key: _unwrapped(dump(_plain(value))) for key, value in raw.get("attributes", {}).items()}
    attributes[REQUEST_ID] = dump(trace_name(trace_id))
    kind = raw.get("kind", 0)
    status = raw.get("status", 0)
    return Span(
        trace_id=trace_id.rjust(16, b"\0"),
        span_id=span_id.rjust(8, b"\0"),
        parent_id=parent_id.rjust(8, b"\0") if parent_id and any(parent_id) else None,
        name=raw.get("name", ""),
        kind=KINDS[kind] if 0 < kind < len(KINDS) else KINDS[1],
        start_ns=raw.get("start_ns", 0),
        end_ns=raw.get("end_ns", 0) or None,
        status=_STATUS_NAMES[status] if 0 <= status < len(_STATUS_NAMES) else _STATUS_NAMES[0],
        message=raw.get("message", ""),
        attributes=attributes,
        events=tuple(raw.get("events", ())),
        links=tuple(raw.get("links", ())),
        resource=raw.get("resource", {}),
    )


def _check_kinds(raw: Mapping[str, Any]) -> None:
    """JSON may say anything in any place, and a time of protobuf has a bit more than the database."""
    names = (raw.get("name", ""), raw.get("message", ""), *raw.get("attributes", {}), *raw.get("resource", {}))
    if not all(isinstance(name, str) for name in names):
        raise Malformed("a name that is no text")
    if not all(0 <= raw.get(name, 0) < 2**63 for name in ("start_ns", "end_ns")):
        raise Malformed("a time that is none")


def _unwrapped(text: str) -> str:
    """MLflow's clients send values that are JSON texts already: one layer of quotes is enough. Numbers that others send
    as text stay text."""
    inner = load_json(text)
    if isinstance(inner, str):
        try:
            if isinstance(json.loads(inner), str | dict | list):
                return inner
        except (ValueError, RecursionError):
            pass
    return text


def _plain(value: Any) -> Any:
    """With bytes as base64, which JSON can say."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


# Protobuf


def _resource_spans(message: bytes) -> Iterator[dict[str, Any]]:
    resource: dict[str, Any] = {}
    scopes: list[bytes] = []
    for number, value in fields_of(message):
        if number == 1:
            resource = _attributes(value for field, value in fields_of(bytes_of(value)) if field == 1)
        elif number == 2:
            scopes.append(bytes_of(value))
    for scope in scopes:
        for number, value in fields_of(scope):
            if number == 2:
                yield {**_span(bytes_of(value)), "resource": resource}


# Fields of a span by their number, and how each is read.
_FIELDS: dict[int, tuple[str, Callable[[Value], Any]]] = {
    1: ("trace_id", bytes_of),
    2: ("span_id", bytes_of),
    4: ("parent_id", bytes_of),
    5: ("name", text_of),
    6: ("kind", whole_of),
    7: ("start_ns", whole_of),
    8: ("end_ns", whole_of),
}


def _span(message: bytes) -> dict[str, Any]:
    span: dict[str, Any] = {"events": [], "links": []}
    attributes: list[Value] = []
    for number, value in fields_of(message):
        if number in _FIELDS:
            name, read = _FIELDS[number]
            span[name] = read(value)
        elif number == 9:
            attributes.append(value)
        elif number == 11:
            span["events"].append(_event(bytes_of(value)))
        elif number == 13:
            span["links"].append(_link(bytes_of(value)))
        elif number == 15:
            span.update(_status(bytes_of(value)))
    span["attributes"] = _attributes(attributes)
    return span


def _event(message: bytes) -> SpanEvent:
    found = dict(fields_of(message))
    attributes = _attributes(value for number, value in fields_of(message) if number == 3)
    return SpanEvent(name=text_of(found.get(2, b"")), time_ns=whole_of(found.get(1, 0)), attributes=_plain(attributes))


def _link(message: bytes) -> SpanLink:
    found = dict(fields_of(message))
    attributes = _attributes(value for number, value in fields_of(message) if number == 4)
    return SpanLink(
        trace_id=bytes_of(found.get(1, b"")), span_id=bytes_of(found.get(2, b"")), attributes=_plain(attributes)
    )


def _status(message: bytes) -> dict[str, Any]:
    found = dict(fields_of(message))
    return {"message": text_of(found.get(2, b"")), "status": whole_of(found.get(3, 0))}


def _attributes(pairs: Iterable[Value]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        fields = dict(fields_of(bytes_of(pair)))
        found[text_of(fields.get(1, b""))] = _any_value(bytes_of(fields.get(2, b"")))
    return found


def _any_value(message: bytes) -> Any:
    found: Any = None
    for number, value in fields_of(message):
        match number:
            case 1:
                found = text_of(value)
            case 2:
                found = bool(whole_of(value))
            case 3:
                found = signed_of(value)
            case 4:
                found = double_of(value)
            case 5:
                found = [_any_value(bytes_of(item)) for field, item in fields_of(bytes_of(value)) if field == 1]
            case 6:
                found = _attributes(item for field, item in fields_of(bytes_of(value)) if field == 1)
            case 7:
                found = bytes_of(value)
    return found


# JSON: ids in hex, 64-bit numbers as text or numbers, enums as names or numbers


def _json_resource_spans(resource: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    attributes = _json_attributes((resource.get("resource") or {}).get("attributes") or [])
    for scope in resource.get("scopeSpans") or ():
        for span in scope.get("spans") or ():
            status = span.get("status") or {}
            yield {
                "trace_id": _hex(span.get("traceId")),
                "span_id": _hex(span.get("spanId")),
                "parent_id": _hex(span.get("parentSpanId")),
                "name": span.get("name", ""),
                "kind": _enum(span.get("kind", 0), KINDS),
                "start_ns": int(span.get("startTimeUnixNano", 0)),
                "end_ns": int(span.get("endTimeUnixNano", 0)),
                "attributes": _json_attributes(span.get("attributes") or []),
                "events": [
                    SpanEvent(
                        name=event.get("name", ""),
                        time_ns=int(event.get("timeUnixNano", 0)),
                        attributes=_plain(_json_attributes(event.get("attributes") or [])),
                    )
                    for event in span.get("events") or ()
                ],
                "links": [
                    SpanLink(
                        trace_id=_hex(link.get("traceId")),
                        span_id=_hex(link.get("spanId")),
                        attributes=_plain(_json_attributes(link.get("attributes") or [])),
                    )
                    for link in span.get("links") or ()
                ],
                "status": _enum(status.get("code", 0), _STATUS_NAMES),
                "message": status.get("message", ""),
                "resource": attributes,
            }


def _json_attributes(pairs: list[Any]) -> dict[str, Any]:
    return {pair["key"]: _json_value(pair.get("value") or {}) for pair in pairs}


def _json_value(value: Mapping[str, Any]) -> Any:
    for kind, found in value.items():
        match kind:
            case "stringValue" | "boolValue":
                return found
            case "intValue":
                return int(found)
            case "doubleValue":
                return float(found)
            case "bytesValue":
                return base64.b64decode(found)
            case "arrayValue":
                return [_json_value(item) for item in found.get("values") or ()]
            case "kvlistValue":
                return _json_attributes(found.get("values") or [])
    return None


def _hex(text: str | None) -> bytes:
    try:
        return bytes.fromhex(text or "")
    except ValueError:
        raise Malformed(f"{text!r} is no id") from None


def _enum(value: int | str, names: tuple[str, ...]) -> int:
    if isinstance(value, int):
        return value
    return names.index(value) if value in names else 0
