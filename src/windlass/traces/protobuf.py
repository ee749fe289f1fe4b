"""Protobuf's wire format, read by hand: fields of a message as (number, value). What a number means is the reader's."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = int | bytes  # whole numbers and fixed ones as unsigned, everything else as bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """These bytes are no message."""


def fields_of(message: bytes) -> Iterator[tuple[int, Value]]:
    """Raises Malformed, maybe after some fields."""
    view, at, end = memoryview(message), 0, len(message)
    while at < end:
        key, at = _varint(view, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise Malformed("a field with the number 0")
        if kind == _VARINT:
            value, at = _varint(view, at)
            yield number, value
            continue
        size, at = _varint(view, at) if kind == _BYTES else (_size(kind), at)
        if at + size > end:
            raise Malformed("a field is longer than what is there")
        piece = bytes(view[at : at + size])
        at += size
        yield number, piece if kind == _BYTES else int.from_bytes(piece, "little")


def text_of(value: Value) -> str:
    try:
        return bytes_of(value).decode()
    except UnicodeDecodeError:
        raise Malformed("a text is not UTF-8") from None


def bytes_of(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise Malformed("a number where bytes belong")
    return value


def whole_of(value: Value) -> int:
    """As it stands in the message: unsigned."""
    if not isinstance(value, int):
        raise Malformed("bytes where a number belongs")
    return value


def signed_of(value: Value) -> int:
    number = whole_of(value)
    return number - (1 << 64) if number >= 1 << 63 else number


def double_of(value: Value) -> float:
    number: float = struct.unpack("<d", whole_of(value).to_bytes(8, "little"))[0]
    return number


def _size(kind: int) -> int:
    try:
        return {_FIXED64: 8, _FIXED32: 4}[kind]
    except KeyError:
        raise Malformed(f"a field of kind {kind}") from None


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if at >= len(view) or shift > 63:
            raise Malformed("a number has no end")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
