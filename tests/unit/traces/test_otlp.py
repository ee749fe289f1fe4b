"""Spans out of OTLP's protobuf and JSON, and what is made of bytes that are neither."""

from __future__ import annotations

import json
import struct

import pytest

from windlass.traces.otlp import Unconvertible, read_json, read_protobuf
from windlass.traces.protobuf import Malformed, fields_of
from windlass.traces.spans import render_content, render_otel

TRACE, SPAN, PARENT = bytes(range(16)), b"\1" * 8, b"\2" * 8


def varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def piece(number: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def whole(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value & (1 << 64) - 1)


def fixed(number: int, value: int) -> bytes:
    return varint(number << 3 | 1) + value.to_bytes(8, "little")


def pair(key: str, value: bytes) -> bytes:
    return piece(1, key) + piece(2, value)


def request(*spans: bytes, resource: bytes = b"") -> bytes:
    return piece(1, piece(1, resource) + piece(2, b"".join(piece(2, span) for span in spans)))


def span(*more: bytes) -> bytes:
    return b"".join(
        [piece(1, TRACE), piece(2, SPAN), piece(5, "root"), fixed(7, 5_000_000), fixed(8, 9_000_000), *more]
    )


def test_a_span_is_read_with_all_kinds_of_values() -> None:
    values = {
        "text": piece(1, "ä"),
        "yes": whole(2, 1),
        "minus": whole(3, -7),
        "half": varint(4 << 3 | 1) + struct.pack("<d", 0.5),
        "list": piece(5, piece(1, whole(3, 1)) + piece(1, piece(1, "b"))),
        "map": piece(6, piece(1, pair("k", whole(2, 0)))),
        "bytes": piece(7, b"\0\1"),
        "nothing": b"",
    }
    attributes = b"".join(piece(9, pair(key, value)) for key, value in values.items())
    event = piece(11, fixed(1, 6_000_000) + piece(2, "hit") + piece(3, pair("n", whole(3, 3))))
    link = piece(13, piece(1, TRACE) + piece(2, PARENT) + piece(4, pair("why", piece(1, "retry"))))
    status = piece(15, piece(2, "broke") + whole(3, 2))
    [found] = read_protobuf(
        request(
            span(piece(4, PARENT), whole(6, 3), attributes, event, link, status),
            resource=piece(1, pair("service.name", piece(1, "shop"))),
        )
    )
    assert (found.trace, found.id, found.parent) == (f"tr-{TRACE.hex()}", SPAN.hex(), PARENT.hex())
    assert (found.name, found.kind, found.start_ns, found.end_ns) == ("root", "SPAN_KIND_CLIENT", 5_000_000, 9_000_000)
    assert (found.status, found.message) == ("STATUS_CODE_ERROR", "broke")
    assert {key: json.loads(value) for key, value in found.attributes.items()} == {
        "text": "ä",
        "yes": True,
        "minus": -7,
        "half": 0.5,
        "list": [1, "b"],
        "map": {"k": False},
        "bytes": "AAE=",
        "nothing": None,
        "mlflow.traceRequestId": f"tr-{TRACE.hex()}",
    }
    assert found.events[0].name == "hit"
    assert found.events[0].attributes == {"n": 3}
    assert found.links[0].attributes == {"why": "retry"}
    assert found.resource == {"service.name": "shop"}


def test_values_that_are_json_already_are_not_quoted_twice() -> None:
    inner = {"a": '{"x": 1}', "b": '"quoted"', "c": "1", "d": "plain"}
    attributes = b"".join(piece(9, pair(key, piece(1, value))) for key, value in inner.items())
    [found] = read_protobuf(request(span(attributes)))
    assert found.attribute("a") == {"x": 1}
    assert found.attribute("b") == "quoted"
    assert found.attribute("c") == "1"
    assert found.attribute("d") == "plain"


def test_json_says_the_same_as_protobuf() -> None:
    body = {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": TRACE.hex(),
                                "spanId": SPAN.hex(),
                                "name": "root",
                                "startTimeUnixNano": "5000000",
                                "endTimeUnixNano": "9000000",
                                "attributes": [{"key": "n", "value": {"intValue": "3"}}],
                                "status": {"code": "STATUS_CODE_OK"},
                            }
                        ]
                    }
                ],
            }
        ]
    }
    raw = request(
        span(piece(9, pair("n", whole(3, 3))), piece(15, whole(3, 1))),
        resource=piece(1, pair("service.name", piece(1, "shop"))),
    )
    assert read_json(json.dumps(body).encode()) == read_protobuf(raw)


def test_a_span_without_ids_cannot_be_kept() -> None:
    with pytest.raises(Unconvertible):
        read_protobuf(request(piece(1, TRACE) + piece(5, "no id of its own")))


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"\x0a\x05ab", piece(2, b"only what nobody knows"), b"\x0b", b"\x0a" + b"\xff" * 11],
)
def test_other_bytes_are_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        read_protobuf(body)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"resourceSpans": 3}', b'{"resourceSpans": [{"scopeSpans": 1}]}']
)
def test_other_json_is_malformed(body: bytes) -> None:
    with pytest.raises((Malformed, ValueError)):
        read_json(body)


def test_fields_that_are_unknown_are_passed_over() -> None:
    message = whole(99, 1) + fixed(98, 2) + varint(97 << 3 | 5) + b"abcd" + piece(1, "x")
    assert list(fields_of(message)) == [(99, 1), (98, 2), (97, int.from_bytes(b"abcd", "little")), (1, b"x")]


def test_what_is_kept_is_shown_as_opentelemetry_writes_it() -> None:
    [found] = read_protobuf(request(span(piece(9, pair("n", whole(3, 3))), piece(15, whole(3, 1)))))
    shown = render_otel(json.loads(render_content(found)))
    assert shown["start_time_unix_nano"] == 5_000_000
    assert shown["status"] == {"code": "STATUS_CODE_OK"}
    assert {"key": "n", "value": {"int_value": 3}} in shown["attributes"]
    assert "parent_span_id" not in shown


@pytest.mark.parametrize(
    "more",
    [
        {"name": {}},
        {"attributes": [{"key": 5, "value": {"stringValue": "x"}}]},
        {"startTimeUnixNano": 2**63},
        {"startTimeUnixNano": -1},
        {"endTimeUnixNano": float("inf")},
        {"status": {"message": 5}},
    ],
)
def test_what_json_says_in_the_wrong_place_is_malformed(more: dict[str, object]) -> None:
    one = {"traceId": TRACE.hex(), "spanId": SPAN.hex(), "name": "root", **more}
    with pytest.raises(Malformed):
        read_json(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}).encode())


def test_times_that_the_database_cannot_keep_are_malformed() -> None:
    with pytest.raises(Malformed):
        read_protobuf(request(span(fixed(8, 2**63))))


def test_halves_of_characters_are_not_kept() -> None:
    one = {"traceId": TRACE.hex(), "spanId": SPAN.hex(), "name": "\ud800"}
    [found] = read_json(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}).encode())
    render_content(found).encode()
