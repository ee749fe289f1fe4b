"""Records and messages of event files."""

from __future__ import annotations

import math
import struct

import pytest

from tests.event_files import event, field, record, simple, tensor, varint
from windlass.agent import eventfile
from windlass.agent.eventfile import Damaged, Scalars, read_event


def scalar(content: bytes) -> float | None:
    found = read_event(event(1.0, 2, tensor("x", content)))
    return found.values[0][1] if found else None


def test_checksums_are_those_of_the_standard() -> None:
    # CRC-32C of "123456789" is 0xe3069283.
    crc = 0xE3069283
    assert eventfile.masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars_of_torch() -> None:
    found = read_event(event(1700000000.25, 7, simple("loss", 0.5), simple("a/b", -2.0)))
    assert found == Scalars(1700000000.25, 7, [("loss", 0.5), ("a/b", -2.0)])
    nan = read_event(event(1.0, 0, simple("x", math.nan)))
    assert nan is not None
    assert math.isnan(nan.values[0][1])


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (field(1, 0, varint(1)) + field(2, 2, b"") + field(4, 2, struct.pack("<f", 0.25)), 0.25),
        (field(1, 0, varint(1)) + field(5, 2, struct.pack("<f", 0.25)), 0.25),
        (field(1, 0, varint(1)) + field(5, 5, struct.pack("<f", 0.25)), 0.25),
        (field(1, 0, varint(2)) + field(6, 2, struct.pack("<d", 1e-300)), 1e-300),
        (field(1, 0, varint(9)) + field(10, 2, varint(-3)), -3.0),
        (field(1, 0, varint(3)) + field(7, 0, varint(12)), 12.0),
        (field(1, 0, varint(19)) + field(13, 2, varint(0x3800)), 0.5),
        (field(1, 0, varint(1)) + field(2, 2, b""), 0.0),
    ],
)
def test_scalars_of_tensorflow_2(content: bytes, value: float) -> None:
    assert scalar(content) == value


def test_what_is_no_scalar_is_passed_over() -> None:
    one_by_one = field(2, 2, field(2, 2, field(1, 0, varint(1))))
    assert scalar(field(1, 0, varint(1)) + one_by_one + field(4, 2, struct.pack("<f", 1.0))) is None
    assert scalar(field(1, 0, varint(7)) + field(8, 2, b"text")) is None
    histogram = tensor("x", field(1, 0, varint(1)) + field(5, 2, struct.pack("<f", 1.0)), plugin="histograms")
    assert read_event(event(1.0, 2, histogram)) is None
    assert read_event(field(1, 1, struct.pack("<d", 5.0)) + field(3, 2, b"brain.Event:2")) is None


def test_what_is_damaged_is_said_to_be() -> None:
    whole = record(event(1.0, 2, simple("loss", 0.5)))
    header, message, footer = whole[:12], whole[12:-4], whole[-4:]
    assert eventfile.record_length(header) == len(message)
    eventfile.check_record(message, footer)
    with pytest.raises(Damaged):
        eventfile.record_length(b"\x01" + header[1:])
    with pytest.raises(Damaged):
        eventfile.check_record(message[:-1] + b"\x00", footer)
    for garbage in (b"\xff" * 20, b"\x0a\x7f", b"\x0b", b"\x80"):
        with pytest.raises(Damaged):
            read_event(garbage)


def test_names_tell_when_a_file_was_begun() -> None:
    assert eventfile.began_at("events.out.tfevents.1700000000.host.12.0") == 1700000000
    assert eventfile.began_at("events.out.tfevents.1700000000.host.profile-empty") == 1700000000
    assert eventfile.began_at("checkpoint-1700000000.pt") is None
