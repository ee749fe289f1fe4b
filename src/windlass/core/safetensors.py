"""The safetensors format: eight bytes of length, a JSON header, and the tensors' bytes one after another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from windlass.core.dcp import ITEM_BYTES
from windlass.core.errors import InvalidInput

_ALIGNMENT = 64
_NAMES: Mapping[str, str] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float16": "F16",
    "bfloat16": "BF16",
    "int16": "I16",
    "uint16": "U16",
    "float32": "F32",
    "int32": "I32",
    "uint32": "U32",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    header: bytes  # with its length before it
    starts: Mapping[str, int]  # of each tensor's bytes in the file
    size_bytes: int


def render_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]], about: Mapping[str, str]) -> Plan:
    """`tensors`: type and shape by name. `about`: texts for people. Raises InvalidInput for a type that it lacks."""
    header: dict[str, object] = {"__metadata__": dict(about)}
    offsets: dict[str, int] = {}
    at = 0
    # The largest items first, so that all are aligned without gaps, which the format forbids.
    for name in sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name][0]], name)):
        dtype, shape = tensors[name]
        if dtype not in _NAMES:
            raise InvalidInput(f"safetensors has no type for {name}, which is {dtype}; it has {', '.join(_NAMES)}")
        size = ITEM_BYTES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        offsets[name], at = at, at + size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    begin = 8 + len(text)
    return Plan(
        header=len(text).to_bytes(8, "little") + text,
        starts={name: begin + offset for name, offset in offsets.items()},
        size_bytes=begin + at,
    )
