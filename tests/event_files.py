"""TensorBoard's event files as its writers make them, byte by byte: tests need no TensorFlow for them."""

from __future__ import annotations

import struct
from pathlib import Path

from windlass.agent.eventfile import masked_crc


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def field(number: int, kind: int, value: bytes) -> bytes:
    return varint(number << 3 | kind) + (varint(len(value)) + value if kind == 2 else value)


def simple(tag: str, value: float) -> bytes:
    """As torch's SummaryWriter and TensorFlow 1 write a scalar."""
    return field(1, 2, tag.encode()) + field(2, 5, struct.pack("<f", value))


def tensor(tag: str, content: bytes, *, plugin: str = "scalars") -> bytes:
    """As TensorFlow 2 writes it; `content` is that of the TensorProto."""
    metadata = field(1, 2, field(1, 2, plugin.encode()))
    return field(1, 2, tag.encode()) + field(9, 2, metadata) + field(8, 2, content)


def event(at: float, step: int, *values: bytes) -> bytes:
    summary = b"".join(field(1, 2, value) for value in values)
    return field(1, 1, struct.pack("<d", at)) + field(2, 0, varint(step)) + field(5, 2, summary)


def record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_crc(length)) + message + struct.pack("<I", masked_crc(message))


HEAD = record(field(1, 1, struct.pack("<d", 5.0)) + field(3, 2, b"brain.Event:2"))


def write(folder: Path, began: int, *records: bytes, host: str = "host") -> Path:
    """Appends to the file that a writer began at that time."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{began}.{host}.1.0"
    data = b"".join(records)
    with path.open("ab") as file:
        file.write(data if path.stat().st_size else HEAD + data)
    return path
