"""Which attempts' folders are of no more use."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from windlass.runs.tables import attempts


def load_archived(tx: Connection, attempt_ids: Sequence[str], *, before: float) -> list[str]:
    """Those of these whose logs were in the blobs before that time."""
    query = select(attempts.c.id).where(attempts.c.id.in_(list(attempt_ids)), attempts.c.archived_at < before)
    return list(tx.execute(query.order_by(attempts.c.id)).scalars())
