"""JSON of calls and answers, by pydantic's reader and writer: several times as fast as the standard library's, and most
of what a batch of points or a page of runs takes. What they do not take (halves of characters, texts in other
encodings, deep nesting) is left to the standard library, which decides what is JSON.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json


def read_json(raw: bytes | str) -> Any:
    """Raises ValueError and RecursionError."""
    try:
        return from_json(raw)
    except (ValueError, TypeError):
        return json.loads(raw)


def json_text(value: Any) -> bytes:
    try:
        return to_json(value)
    except (PydanticSerializationError, ValueError):
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass")
