"""Moments as people write them: some time ago, a time of today, or a date."""

from __future__ import annotations

import time
from datetime import datetime

from windlass.core.errors import InvalidInput
from windlass.core.quantities import parse_duration


def moment(option: str, text: str | None, *, now: float | None = None) -> float | None:
    """Seconds since the epoch. Times without a zone are those of this machine."""
    if text is None:
        return None
    now = time.time() if now is None else now
    try:
        if ":" in text and "-" not in text:
            at = datetime.strptime(text, "%H:%M:%S" if text.count(":") == 2 else "%H:%M")
            found = datetime.combine(datetime.fromtimestamp(now).date(), at.time()).timestamp()
            return found if found <= now else found - 86_400  # yesterday's, then: logs are of the past
        if "-" in text:
            return datetime.fromisoformat(text).timestamp()
        return now - parse_duration(text)
    except (ValueError, OverflowError, InvalidInput):
        raise InvalidInput(
            f"{option} {text!r} is no time", hint="write 10m or 2h (ago), 14:30, 2026-11-15 or 2026-11-15T14:30"
        ) from None


def age(seconds: float) -> str:
    """In the largest unit that there is one of: 3d, 12m."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)}{unit}"
    return f"{max(0, int(seconds))}s"
