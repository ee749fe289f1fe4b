"""Whether engines can be reached: written by the controller that schedules, shown to whoever wonders about a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Column, Connection, String, Table, Text, delete, insert, select

from windlass.db.metadata import Seconds, metadata

engines = Table(
    "engines",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("type", String(32), nullable=False),
    Column("unreachable_since", Seconds),
    Column("message", Text, nullable=False),
    Column("seen_at", Seconds),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    type: str
    unreachable_since: float | None = None  # None: it answered when it was asked last
    message: str = ""
    seen_at: float | None = None  # when it answered last


def decide_state(known: EngineState | None, type: str, problem: str | None, *, now: float) -> EngineState:
    """What to keep after asking once more; `problem` is why it did not answer."""
    if problem is None:
        return EngineState(type=type, seen_at=now)
    since = known.unreachable_since if known and known.unreachable_since is not None else now
    return EngineState(type=type, unreachable_since=since, message=problem, seen_at=known.seen_at if known else None)


def commit_engines(tx: Connection, states: Mapping[str, EngineState]) -> None:
    """Replace what is known of all engines: one that is no longer configured goes."""
    tx.execute(delete(engines))
    rows = [
        {
            "name": name,
            "type": state.type,
            "unreachable_since": state.unreachable_since,
            "message": state.message,
            "seen_at": state.seen_at,
        }
        for name, state in states.items()
    ]
    if rows:
        tx.execute(insert(engines), rows)


def load_engines(tx: Connection) -> dict[str, EngineState]:
    return {
        row.name: EngineState(
            type=row.type, unreachable_since=row.unreachable_since, message=row.message, seen_at=row.seen_at
        )
        for row in tx.execute(select(engines).order_by(engines.c.name))
    }
