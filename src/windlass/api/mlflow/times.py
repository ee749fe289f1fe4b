"""Times and durations as protobuf writes them in JSON: `2026-01-31T12:00:00.250Z`, `1.500s`. Milliseconds inside."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from windlass.api.mlflow.fields import invalid
from windlass.core.errors import InvalidInput
from windlass.traces.types import FIRST_MS, LAST_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION = re.compile(r"(-?)(\d{1,15})(?:\.(\d{1,9}))?s", re.ASCII)


def render_time(ms: int) -> str:
    ms = min(max(ms, FIRST_MS), LAST_MS)  # calendars end somewhere
    at = _EPOCH + timedelta(milliseconds=ms)
    shown = at.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{shown:0>19}.{ms % 1000:03d}Z" if ms % 1000 else f"{shown:0>19}Z"


def read_time(name: str, value: Any) -> int:
    try:
        at = datetime.fromisoformat(value)
        ms = (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(invalid(name, value)) from None
    if not FIRST_MS <= ms <= LAST_MS:
        raise InvalidInput(invalid(name, value))
    return ms


def render_duration(ms: int) -> str:
    seconds, rest = divmod(abs(ms), 1000)
    return f"{'-' if ms < 0 else ''}{seconds}{f'.{rest:03d}' if rest else ''}s"


def read_duration(name: str, value: Any) -> int:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidInput(invalid(name, value))
    sign, seconds, rest = match.groups()
    ms = int(seconds) * 1000 + int((rest or "").ljust(9, "0")) // 1_000_000
    return -ms if sign else ms
