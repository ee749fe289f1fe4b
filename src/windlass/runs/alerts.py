"""Alerts that a run's processes raise, as events of the run."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from windlass.runs import store
from windlass.runs.types import EventKind
from windlass.tracking.points import Alert

_MOST_AT_ONCE = 20  # of one process in one read: jobs hold themselves back, but not every writer of a spool need be one


def record_alerts(tx: Connection, run_id: str, source: str, alerts: Sequence[Alert]) -> None:
    """In the transaction that moves the position of `source`, `spool:<attempt>:<rank>`: so each is told once. It has
    the lock on the run's points, so no other looks at the same time for what several ranks say."""
    if not alerts:
        return
    _, attempt_id, rank = source.rsplit(":", 2)
    attempt = int(attempt_id.rpartition(".")[2])
    for alert in alerts[:_MOST_AT_ONCE]:
        message = f"{alert.kind}{'' if alert.step is None else f' at step {alert.step:,}'}: {alert.message}"
        if alert.once and store.has_event(tx, run_id, EventKind.ALERT, attempt=attempt, message=message):
            continue
        store.record_event(
            tx,
            run_id,
            EventKind.ALERT,
            at=alert.at,
            attempt=attempt,
            message=message,
            data={"kind": alert.kind, "step": alert.step, "rank": int(rank)},
        )
