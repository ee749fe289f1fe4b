"""Tokens of pages: where a listing goes on. What is in one is nobody's business but ours."""

from __future__ import annotations

import base64
import binascii
import json

from windlass.core.errors import InvalidInput

_LARGEST = 2**63 - 1


def page_token(offset: int) -> str:
    return base64.b64encode(json.dumps({"offset": offset}).encode()).decode()


def offset_of(token: str | None) -> int:
    """0 without a token. Raises InvalidInput for one that we cannot have given."""
    if not token:
        return 0
    try:
        decoded = base64.b64decode(token)
    except (binascii.Error, ValueError):
        raise InvalidInput("Invalid page token, could not base64-decode") from None
    try:
        found = json.loads(decoded)
    except ValueError:
        raise InvalidInput(f"Invalid page token, decoded value={decoded!r}") from None
    offset = found.get("offset") if isinstance(found, dict) else None
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 < offset <= _LARGEST:
        raise InvalidInput(f"Invalid page token, parsed value={found}")
    return offset
