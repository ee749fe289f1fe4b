"""Which events of runs webhooks can hear of, and what they are told. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.runs.types import EventKind
from windlass.webhooks.outbox import Happening

_TOLD = frozenset(
    {
        EventKind.SUBMITTED,
        EventKind.STARTED,
        EventKind.RETRYING,
        EventKind.PREEMPTING,
        EventKind.ALERT,
        EventKind.SUCCEEDED,
        EventKind.FAILED,
        EventKind.CANCELLED,
    }
)


def announcements(rows: Sequence[Mapping[str, Any]]) -> list[Happening]:
    """Of events as they are written down."""
    return [_happening(row) for row in rows if row["kind"] in _TOLD]


def _happening(row: Mapping[str, Any]) -> Happening:
    data = {name: row.get(name) for name in ("run_id", "attempt", "message", "data")}
    return Happening(f"run.{EventKind(row['kind']).value}", data, row["at"])
