"""What people ask about the queue: why a run waits, who is in front of it, what projects have. Goes by the snapshot and
the rules of the decisions; decides nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from itertools import chain, islice

from sqlalchemy import Connection, Row, select

from windlass.core.quantities import format_duration
from windlass.runs import store
from windlass.runs.living import LivingBook
from windlass.runs.snapshot import SnapshotBook, load_history
from windlass.runs.tables import runs
from windlass.runs.views import priority_name
from windlass.scheduling.amounts import describe_wants
from windlass.scheduling.aside import load_aside
from windlass.scheduling.core import index
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.forecast import Forecast, forecast_start, forecast_starts
from windlass.scheduling.core.learned import Learned
from windlass.scheduling.core.types import Snapshot, Waiting
from windlass.scheduling.engines import load_engines
from windlass.scheduling.explain import Beside, Explanation, explain_waiting, reason_in_short
from windlass.scheduling.outlook import Obstacle, Outlook
from windlass.scheduling.rules import Rules
from windlass.scheduling.shares import Share, shares_of
from windlass.wire.queue import ProjectShare, QueueEntry, QueueView
from windlass.wire.runs import StartEstimate

LEARN_EVERY_S, RETRY_EVERY_S = 600.0, 10.0
FRESH_S, MANY = 2.0, 1_000  # how long an answer about so many runs holds
LEAST_ENDED = 5  # runs, from which something is known of how long runs last
_NEVER = (Obstacle.NONE, Obstacle.ABSENT, Obstacle.NO_NODES)  # of these there is nothing to forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """About one run that waits."""

    explanation: Explanation
    queued: int
    start: StartEstimate | None


class QueueDesk:
    """Safe for several threads, which are served one after the other. What it remembers saves reading it again."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._book = SnapshotBook(rules)
        self._learned: Learned | None = None
        self._ended = 0  # runs that it could be learned from
        self._learn_at = 0.0
        self._last: Outlook | None = None
        self._lock = threading.Lock()

    def explain(self, tx: Connection, run_id: str, *, now: float) -> Answer | None:
        """None if the run is not among those that may start now."""
        outlook = self._look(tx, now, run_id)
        explanation = explain_waiting(outlook, run_id, load_beside(tx, now=now))
        if explanation is None:
            return None
        start = None
        # Where nothing is known of how long runs last, a guess would look like knowledge.
        if outlook.snapshot.learned is not None and outlook.hindrance(outlook.waiting[run_id]).obstacle not in _NEVER:
            start = _estimate(forecast_start(outlook.snapshot, outlook.policy, outlook.now, run_id))
        return Answer(explanation=explanation, queued=len(outlook.order), start=start)

    def view(self, tx: Connection, *, project: str | None, limit: int, now: float) -> QueueView:
        outlook = self._look(tx, now)
        snapshot, beside, rows = outlook.snapshot, load_beside(tx, now=now), _load_waiting_rows(tx)
        forecasts = forecast_starts(snapshot, outlook.policy, outlook.now) if snapshot.learned is not None else {}
        due = (
            _entry(outlook, outlook.waiting[run_id], rows[run_id], beside, forecasts.get(run_id))
            for run_id in outlook.order
            if run_id in rows and project in (None, rows[run_id].project)
        )
        paused = (
            _paused(row, now)
            for row in rows.values()
            if (row.retry_at or 0.0) > now and row.id not in outlook.waiting and project in (None, row.project)
        )
        shares = [_project_share(share) for share in shares_of(outlook)]
        return QueueView(total=len(rows), entries=list(islice(chain(due, paused), limit)), projects=shares)

    def _look(self, tx: Connection, now: float, run_id: str | None = None) -> Outlook:
        """With many runs, what was seen a moment ago will do, if this one was there: many may ask at once."""
        with self._lock:
            last = self._last
            if last is not None and last.now <= now < last.now + FRESH_S and (run_id is None or run_id in last.waiting):
                return last
            snapshot = self._load(tx, now)
            policy = self._rules.policy_after(self._ended)
            found = Outlook(snapshot, policy, decide(snapshot, policy, now), now)
            self._last = found if len(snapshot.waiting) + len(snapshot.running) >= MANY else None
            return found

    def _load(self, tx: Connection, now: float) -> Snapshot:
        # Attempts are read anew: of what changes in one while it lives, its last checkpoint is asked for here.
        snapshot = self._book.load(tx, LivingBook().load(tx, None), now=now)
        if now >= self._learn_at:
            history = load_history(tx)
            self._ended = history.count
            going = [index.lasted(run, now) for run in snapshot.running]
            going += [index.lasted(run, now) for run in snapshot.waiting if run.served]
            self._learned = history.learn(going) if history.count >= LEAST_ENDED else None
            self._learn_at = now + (LEARN_EVERY_S if self._learned is not None else RETRY_EVERY_S)
        return replace(snapshot, learned=self._learned)


def load_beside(tx: Connection, *, now: float) -> Beside:
    query = select(runs.c.id, runs.c.name).where(runs.c.state.in_([*store.LIVE, *store.WAITING]))
    away = {name: each.message for name, each in load_engines(tx).items() if each.unreachable_since is not None}
    return Beside(names={row.id: row.name for row in tx.execute(query)}, aside=load_aside(tx, now=now), away=away)


def _load_waiting_rows(tx: Connection) -> dict[str, Row[tuple[object, ...]]]:
    names = ("id", "name", "project", "user", "priority", "queued_at", "retry_at", "attempt_count")
    query = select(*(runs.c[name] for name in names)).where(runs.c.state.in_(list(store.WAITING)))
    return {row.id: row for row in tx.execute(query.order_by(runs.c.retry_at, runs.c.id))}


def _entry(
    outlook: Outlook, run: Waiting, row: Row[tuple[object, ...]], beside: Beside, forecast: Forecast | None
) -> QueueEntry:
    found = outlook.hindrance(run)
    return QueueEntry(
        position=outlook.position[run.run_id],
        run_id=run.run_id,
        name=row.name,
        project=run.project,
        user=row.user,
        priority=priority_name(run.priority),
        wants=describe_wants(run.wants),
        queued_at=run.queued_at,
        start=_estimate(forecast) if found.obstacle not in _NEVER else None,
        obstacle=found.obstacle,
        reason=reason_in_short(found, beside),
    )


def _paused(row: Row[tuple[object, ...]], now: float) -> QueueEntry:
    return QueueEntry(
        position=None,
        run_id=row.id,
        name=row.name,
        project=row.project,
        user=row.user,
        priority=priority_name(row.priority),
        wants="",
        queued_at=row.queued_at,
        obstacle="retry",
        reason=f"attempt {row.attempt_count + 1} in {format_duration(row.retry_at - now)}",
    )


def _estimate(forecast: Forecast | None) -> StartEstimate | None:
    if forecast is None:
        return None
    return StartEstimate(earliest=forecast.earliest, likely=forecast.likely, latest=forecast.latest)


def _project_share(share: Share) -> ProjectShare:
    return ProjectShare(
        name=share.name,
        parent=share.parent,
        weight=share.weight,
        running=share.running,
        waiting=share.waiting,
        gpus=share.gpus,
        tpus=share.tpus,
        cpus=share.cpus,
        memory_bytes=share.memory_bytes,
        quota=dict(share.quota),
        limit=dict(share.limit),
        share=share.held,
        lately=share.lately,
        due=share.due,
    )
