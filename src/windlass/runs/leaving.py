"""Attempts that are warned: that they were is an event of their run, written before anybody tells them. Until then the
scheduler's wish can be withdrawn. And why runs are being cancelled, which is in an event too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, select, update

from windlass.core.ids import attempt_id
from windlass.runs.bulk import in_parts
from windlass.runs.records import AttemptRecord, RunRecord
from windlass.runs.store import WAITING
from windlass.runs.tables import attempts, events, runs
from windlass.runs.types import EventKind


def load_warned(tx: Connection, found: Sequence[AttemptRecord]) -> set[str]:
    """The ids of those whose warning is on record."""
    warned: set[str] = set()
    for some in in_parts(sorted({attempt.run_id for attempt in found})):
        told = select(events.c.run_id, events.c.attempt).where(
            events.c.run_id.in_(some), events.c.kind == EventKind.PREEMPTING
        )
        warned |= {attempt_id(row.run_id, row.attempt) for row in tx.execute(told)}
    return warned & {attempt.id for attempt in found}


def load_reason(tx: Connection, run: RunRecord) -> str | None:
    """Why a run is being cancelled, where it was not a person's wish."""
    if run.cancel_requested_at is None:
        return None
    asked = (events.c.run_id == run.id, events.c.kind == EventKind.CANCEL_REQUESTED)
    data = tx.execute(select(events.c.data).where(*asked).order_by(events.c.seq.desc()).limit(1)).scalar()
    return (data or {}).get("why")


def load_waiting(tx: Connection, run_ids: Iterable[str]) -> set[str]:
    """Those of them that still wait."""
    waiting: set[str] = set()
    for some in in_parts(sorted(run_ids)):
        found = select(runs.c.id).where(runs.c.id.in_(some), runs.c.state.in_(list(WAITING)))
        waiting |= {row.id for row in tx.execute(found)}
    return waiting


def withdraw(tx: Connection, attempt: AttemptRecord) -> None:
    """It need not give way any more. For those only whom nobody has told."""
    tx.execute(update(attempts).where(attempts.c.id == attempt.id).values(giving_way=None))
