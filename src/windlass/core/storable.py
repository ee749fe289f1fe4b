"""What every database can keep of what programs and nodes say: text without NUL and without halves of surrogate pairs,
and finite numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def is_storable(text: str) -> bool:
    return _UNSTORABLE.search(text) is None


def storable_text(text: str) -> str:
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def storable(data: Any) -> Any:
    """JSON-like data that can be kept: bad characters are replaced, numbers that JSON has not become null."""
    if isinstance(data, str):
        return storable_text(data)
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {storable_text(str(key)): storable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [storable(value) for value in data]
    return data
