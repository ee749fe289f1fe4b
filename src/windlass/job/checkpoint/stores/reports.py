"""What the uploader says to the rank that started it: a JSON line on its standard output. Of trouble in words."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from windlass.core.errors import StoreRefused


def told_of(error: Exception) -> str:
    """In one sentence, with what to do about it: those who are told of it see no hints."""
    if isinstance(error, StoreRefused) and error.hint:
        return f"{error.message}; {error.hint}"
    return str(getattr(error, "message", error))


def say(what: str, **more: Any) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more; what is in the store speaks for itself
        os.write(1, json.dumps({"what": what, **more}).encode() + b"\n")
