"""TensorBoard's event files: records with checksums, in each a message of which only scalars are read. Pure; the few
fields that are needed are found in the bytes, without TensorFlow or protobuf.

A record is its length (8 bytes), a checksum of that (4), the message, a checksum of that (4).
"""

from __future__ import annotations

import re
import struct
from typing import Iterator, List, NamedTuple, Optional, Tuple, Union

HEADER_BYTES = 12
FOOTER_BYTES = 4
# Scalars take a hundred bytes or so. What is longer holds pictures or histograms, and is passed over unread.
LONGEST_BYTES = 64 << 10
_LARGEST_RECORD_BYTES = 1 << 40
_NAME = re.compile(r"tfevents\.(\d{9,11})\b")
_WRITER = re.compile(r"tfevents\.\d{9,11}\.(.+)\.(\d{1,10})\.\d+(?:\D.*)?$")
_MASK = 0xA282EAD8
_SCALARS = b"scalars"
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
# Of TensorProto: how elements of a type are packed, and the field that holds them if they are not in its content.
_DTYPES = {1: ("<f", 5), 2: ("<d", 6), 3: ("<i", 7), 9: ("<q", 10), 19: ("<e", 13)}
_CONTENT = 4
_HALF = 19

Field = Tuple[int, int, Union[int, bytes]]


class Damaged(Exception):
    """What follows in the file cannot be told apart any more."""


class Scalars(NamedTuple):
    """What one event says."""

    at: float
    step: int
    values: List[Tuple[str, float]]


def began_at(name: str) -> Optional[int]:
    """When a file was begun, in seconds since the epoch, as its name tells; None for what is no event file."""
    match = _NAME.search(name)
    return int(match.group(1)) if match else None


def writer(name: str, host: str) -> Optional[int]:
    """The process of that host that began a file; None if its name does not tell, or tells of another host."""
    match = _WRITER.search(name)
    return int(match.group(2)) if match and match.group(1) == host else None


def record_length(header: bytes) -> int:
    """Raises Damaged."""
    (length,) = struct.unpack("<Q", header[:8])
    if masked_crc(header[:8]) != struct.unpack("<I", header[8:12])[0] or length > _LARGEST_RECORD_BYTES:
        raise Damaged("the length of a record does not have its checksum")
    return int(length)


def check_record(message: bytes, footer: bytes) -> None:
    """Raises Damaged."""
    if masked_crc(message) != struct.unpack("<I", footer)[0]:
        raise Damaged("a record does not have its checksum")


def read_event(message: bytes) -> Optional[Scalars]:
    """The scalars of an event; None if it has none. Raises Damaged for what is no message."""
    at, step = 0.0, 0
    values: List[Tuple[str, float]] = []
    for number, kind, value in _fields(message):
        if number == 1 and kind == _EIGHT:
            at = _double(value)
        elif number == 2 and kind == _VARINT:
            step = _signed(value)
        elif number == 5 and kind == _BYTES:
            values.extend(_summary(_text(value)))
    return Scalars(at, step, values) if values else None


def _summary(message: bytes) -> Iterator[Tuple[str, float]]:
    for number, kind, value in _fields(message):
        if number == 1 and kind == _BYTES:
            found = _value(_text(value))
            if found is not None:
                yield found


def _value(message: bytes) -> Optional[Tuple[str, float]]:
    tag, found, plugin = "", None, _SCALARS
    for number, kind, value in _fields(message):
        if number == 1 and kind == _BYTES:
            tag = _text(value).decode("utf-8", "replace")
        elif number == 2 and kind == _FOUR:
            found = struct.unpack("<f", _text(value))[0]
        elif number == 8 and kind == _BYTES:
            found = _tensor(_text(value))
        elif number == 9 and kind == _BYTES:
            plugin = _plugin(_text(value))
    return (tag, found) if tag and found is not None and plugin == _SCALARS else None


def _plugin(metadata: bytes) -> bytes:
    """Whose value it is: others than scalars may be single numbers as well."""
    for number, kind, value in _fields(metadata):
        if number == 1 and kind == _BYTES:
            for inner, inner_kind, name in _fields(_text(value)):
                if inner == 1 and inner_kind == _BYTES:
                    return _text(name)
    return _SCALARS


def _tensor(message: bytes) -> Optional[float]:
    """A tensor without dimensions."""
    fields = list(_fields(message))
    dtype = next((value for number, kind, value in fields if number == 1 and kind == _VARINT), 0)
    form, held_in = _DTYPES.get(int(dtype), ("", 0))
    if not form or any(
        number == 2 and kind == _BYTES and _has_dimensions(_text(value)) for number, kind, value in fields
    ):
        return None
    for number, kind, value in fields:
        if number == _CONTENT and kind == _BYTES and len(_text(value)) == struct.calcsize(form):
            return float(struct.unpack(form, _text(value))[0])
        if number == held_in:
            return _element(int(dtype), form, kind, value)
    return 0.0 if not any(number == _CONTENT for number, _, _ in fields) else None  # zero is left out


def _element(dtype: int, form: str, kind: int, value: Union[int, bytes]) -> Optional[float]:
    """The one number of a repeated field: by itself, or packed."""
    if form in ("<f", "<d"):
        data = _text(value)
        return float(struct.unpack(form, data)[0]) if len(data) == struct.calcsize(form) else None
    if kind == _BYTES:
        value, _ = _varint(_text(value), 0)
    if dtype == _HALF:
        return float(struct.unpack("<e", struct.pack("<H", int(value) & 0xFFFF))[0])
    return float(_signed(value))


def _has_dimensions(shape: bytes) -> bool:
    return any(number in (2, 3) for number, _, _ in _fields(shape))


# ---- the wire format of protobuf -------------------------------------------------------------------------------------


def _fields(message: bytes) -> Iterator[Field]:
    """(number, kind, value) of each field. Raises Damaged."""
    at, size = 0, len(message)
    while at < size:
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, kind, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_EIGHT, _FOUR):
            length = 8 if kind == _EIGHT else 4
        else:
            raise Damaged("a record is no event")
        if at + length > size:
            raise Damaged("a record is no event")
        yield key >> 3, kind, message[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Damaged("a record is no event")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _text(value: Union[int, bytes]) -> bytes:
    return value if isinstance(value, bytes) else b""


def _double(value: Union[int, bytes]) -> float:
    return float(struct.unpack("<d", _text(value))[0])


def _signed(value: Union[int, bytes]) -> int:
    number = int(value) & (2**64 - 1) if isinstance(value, int) else 0
    return number - 2**64 if number >= 2**63 else number


# ---- checksums -------------------------------------------------------------------------------------------------------


def masked_crc(data: bytes) -> int:
    """CRC-32C, turned and shifted: data that has its own checksum in it is common."""
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _entry(number: int) -> int:
    for _ in range(8):
        number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
    return number


_TABLE = tuple(_entry(number) for number in range(256))
