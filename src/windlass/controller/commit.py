"""Writing decisions down. Each is applied whole or not at all, and dropped if its run has changed since it was decided:
the next pass decides again.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from windlass.controller.decide import Cancel, EndAttempt, MarkRunning, Succeed
from windlass.controller.lease import LeaseLost, ShardLeases
from windlass.core.exits import Exit, ExitReason
from windlass.core.quantities import format_duration
from windlass.db.database import Database
from windlass.runs import store
from windlass.runs.records import AttemptRecord, RunRecord, exit_to_json
from windlass.runs.retry import Retry
from windlass.runs.types import AttemptState, EventKind, RunState
from windlass.scheduling.types import PlacementDecision
from windlass.tenancy.prices import PriceBook, Spent, spent_on

log = logging.getLogger(__name__)


@contextlib.contextmanager
def on_its_own(tx: Connection, run_id: str) -> Iterator[None]:
    """What goes wrong with one run must not keep the others of the pass from moving on."""
    try:
        with tx.begin_nested():
            yield
    except store.ChangedMeanwhile as changed:
        log.info("%s", changed)
    except Exception:
        log.exception("run %s could not be moved on; trying again", run_id)


def commit_each(db: Database, lease: ShardLeases, steps: Sequence[tuple[str, Callable[[Connection], None]]]) -> None:
    """Apply what was decided for each run (its id, what to do). All at once, as nearly always nothing is in the way;
    else again, each on its own."""
    if not steps:
        return
    try:
        with db.write() as tx:
            lease.beat(tx)
            for _, apply in steps:
                apply(tx)
        return
    except LeaseLost:
        raise
    except Exception as error:
        log.info("not all of %d changes can be made at once: %s", len(steps), error)
    with db.write() as tx:
        lease.beat(tx)
        for run_id, apply in steps:
            with on_its_own(tx, run_id):
                apply(tx)


def commit_placement(tx: Connection, run: RunRecord, decision: PlacementDecision, *, now: float) -> None:
    number = run.attempt_count + 1
    names = ", ".join(share.node for share in decision.placement.shares)
    store.insert_attempt(tx, run, decision.placement, now=now)
    store.advance(
        tx, run, EventKind.PLACED, now=now, attempt=number, message=f"attempt {number} placed on {names}",
        attempt_count=number, retry_at=None,
    )  # fmt: skip


def commit_running(
    tx: Connection, run: RunRecord, attempt: AttemptRecord, decision: MarkRunning, *, now: float
) -> None:
    _start(tx, run, attempt, decision.started_at, now)


def commit_end(
    tx: Connection, run: RunRecord, attempt: AttemptRecord, decision: EndAttempt, prices: PriceBook, *, now: float
) -> None:
    """End the attempt and, in the same breath, say what becomes of its run."""
    if decision.started_at is not None and run.state is RunState.STARTING:
        run = _start(tx, run, attempt, decision.started_at, now)
    started_at = decision.started_at or attempt.started_at
    store.end_attempt(tx, attempt, decision.exit, started_at=started_at, ended_at=decision.ended_at)
    spent = _spent(run, attempt, started_at, decision.ended_at, prices)
    store.record_event(
        tx, run.id, EventKind.ATTEMPT_ENDED, at=now, attempt=attempt.number,
        message=f"attempt {attempt.number} ended: {describe_exit(decision.exit)}",
        data={"exit": exit_to_json(decision.exit)},
    )  # fmt: skip
    kind, message, changes = _conclusion(decision, now)
    store.advance(
        tx, run, kind, now=now, attempt=attempt.number, message=message,
        cpu_hours=run.cpu_hours + spent.cpu_hours, gpu_hours=run.gpu_hours + spent.gpu_hours,
        cost_usd=run.cost_usd + spent.usd, **changes,
    )  # fmt: skip


def describe_exit(exit: Exit) -> str:
    """`signal SIGKILL on rank 1`, `exit code 3 on rank 0: ValueError: ...`."""
    words = {
        ExitReason.COMPLETED: "completed",
        ExitReason.EXIT_CODE: f"exit code {exit.exit_code}",
        ExitReason.SIGNAL: f"signal {_signal_name(exit.signal)}",
        ExitReason.OOM: "out of memory",
        ExitReason.TIMEOUT: "time limit reached",
        ExitReason.LOST: "lost",
        ExitReason.CANCELLED: "cancelled",
        ExitReason.PREEMPTED: "preempted",
        ExitReason.LAUNCH_FAILED: "could not be started",
    }[exit.reason]
    if exit.rank is not None and exit.reason is not ExitReason.COMPLETED:
        words += f" on rank {exit.rank}"
    return f"{words}: {exit.message}" if exit.message else words


def _start(tx: Connection, run: RunRecord, attempt: AttemptRecord, started_at: float, now: float) -> RunRecord:
    store.update_attempt(tx, attempt.id, state=AttemptState.RUNNING, started_at=started_at)
    first = run.started_at or started_at
    message = f"attempt {attempt.number} started"
    store.advance(tx, run, EventKind.STARTED, now=now, attempt=attempt.number, message=message, started_at=first)
    return replace(run, state=RunState.RUNNING, version=run.version + 1, started_at=first)


def _conclusion(decision: EndAttempt, now: float) -> tuple[EventKind, str, dict[str, Any]]:
    ended = {"ended_at": decision.ended_at, "exit": exit_to_json(decision.exit)}
    match decision.verdict:
        case Succeed():
            return EventKind.SUCCEEDED, "every rank completed", ended
        case Cancel():
            return EventKind.CANCELLED, "cancelled on request", ended
        case Retry(after_s=after_s, why=why):
            message = f"trying again in {format_duration(after_s)}: {why}"
            return EventKind.RETRYING, message, {"retry_at": now + after_s}
        case give_up:
            return EventKind.FAILED, f"{describe_exit(decision.exit)} ({give_up.why})", ended


def _spent(
    run: RunRecord, attempt: AttemptRecord, started_at: float | None, ended_at: float, prices: PriceBook
) -> Spent:
    if started_at is None:
        return Spent()
    return spent_on(attempt.placement, run.resources.gpu_type, ended_at - started_at, prices)


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return str(number)
