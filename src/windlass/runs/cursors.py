"""Where a list of runs goes on, and what it is narrowed by, as text of a request."""

from __future__ import annotations

import base64
import json

from windlass.core.errors import InvalidInput
from windlass.runs.records import RunHead


def read_tag(text: str | None) -> tuple[str, str | None] | None:
    """`KEY` or `KEY=VALUE`."""
    if not text:
        return None
    key, equals, value = text.partition("=")
    return key, value if equals else None


def encode_cursor(run: RunHead) -> str:
    return base64.urlsafe_b64encode(json.dumps([run.submitted_at, run.id]).encode()).decode()


def decode_cursor(text: str | None) -> tuple[float, str] | None:
    if not text:
        return None
    try:
        at, run_id = json.loads(base64.b64decode(text.encode(), altchars=b"-_", validate=True))
        at, run_id = float(at), str(run_id)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"{text[:40]!r} is not a cursor; give back the `next_cursor` of the last page") from error
    if "\x00" in run_id:
        raise InvalidInput("a cursor holds no NUL; give back the `next_cursor` of the last page")
    return at, run_id
