"""What is left to do about attempts that are over: engines forget them, their logs and results are moved. Functions
over an open transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from sqlalchemy import Connection, and_, select, tuple_, update

from windlass.runs.store import Slots
from windlass.runs.tables import attempts
from windlass.runs.types import AttemptState


class Outputs(NamedTuple):
    attempt_id: str
    run_id: str
    folder: str


class UnarchivedLogs(NamedTuple):
    released_at: float
    attempt_id: str
    log_dirs: tuple[str, ...]


def load_unreleased(tx: Connection, slots: Slots = None, *, limit: int = 500) -> list[tuple[str, str]]:
    """(attempt id, engine) of those whose end is on record but which the engine still keeps."""
    # The state is looked at here: SQLite would go by its index and through every attempt that has ever ended.
    rows = tx.execute(
        select(attempts.c.id, attempts.c.engine, attempts.c.state, attempts.c.slot).where(
            attempts.c.released_at.is_(None)
        )
    )
    ended = (row for row in rows if row.state == AttemptState.ENDED and (slots is None or row.slot in slots))
    return [(row.id, row.engine) for row in islice(ended, limit)]


def mark_released(tx: Connection, attempt_ids: Sequence[str], *, now: float) -> None:
    tx.execute(update(attempts).where(attempts.c.id.in_(list(attempt_ids))).values(released_at=now))


def load_unarchived(
    tx: Connection, slots: Slots = None, *, after: tuple[float, str] = (0.0, ""), limit: int = 100
) -> list[UnarchivedLogs]:
    """Released attempts whose logs are not in the blobs, in order of release."""
    waiting = and_(attempts.c.released_at.is_not(None), attempts.c.archived_at.is_(None))
    place = tuple_(attempts.c.released_at, attempts.c.id)
    query = select(attempts.c.released_at, attempts.c.id, attempts.c.log_dirs).where(waiting, place > tuple_(*after))
    if slots is not None:
        query = query.where(attempts.c.slot.in_(sorted(slots)))
    rows = tx.execute(query.order_by(attempts.c.released_at, attempts.c.id).limit(limit))
    return [UnarchivedLogs(row.released_at, row.id, tuple(row.log_dirs)) for row in rows]


def mark_archived(tx: Connection, attempt_id: str, log_dirs: Sequence[str], *, now: float) -> None:
    """From here on its logs are read where the archive has them."""
    mine = and_(attempts.c.id == attempt_id, attempts.c.archived_at.is_(None))
    tx.execute(update(attempts).where(mine).values(archived_at=now, log_dirs=list(log_dirs)))


def load_outputs(tx: Connection, slots: Slots = None, *, limit: int = 100) -> list[Outputs]:
    """Folders of runs that are over, and which are not among their artifacts yet."""
    query = select(attempts.c.id, attempts.c.run_id, attempts.c.outputs_in).where(attempts.c.outputs_in.is_not(None))
    if slots is not None:
        query = query.where(attempts.c.slot.in_(sorted(slots)))
    return [Outputs(*row) for row in tx.execute(query.order_by(attempts.c.id).limit(limit))]


def mark_kept(tx: Connection, attempt_id: str) -> bool:
    """Whether it was not before."""
    mine = and_(attempts.c.id == attempt_id, attempts.c.outputs_in.is_not(None))
    return tx.execute(update(attempts).where(mine).values(outputs_in=None)).rowcount == 1
