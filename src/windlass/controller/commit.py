"""Writing decisions down. Each is applied whole or not at all, and dropped if its run has changed since it was decided:
the next pass decides again.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import Connection

from windlass.controller.comebacks import progress_at_end
from windlass.controller.decide import Cancel, EndAttempt, MarkRunning, StopAttempt, Succeed
from windlass.controller.lease import LeaseLost, ShardLeases
from windlass.controller.outputs import output_folder
from windlass.core.exits import Exit, ExitReason
from windlass.core.quantities import format_duration
from windlass.core.resources import Placement
from windlass.db.database import Database
from windlass.engines.contract import StopKind
from windlass.runs import store
from windlass.runs.leaving import load_reason, load_waiting, load_warned, withdraw
from windlass.runs.records import AttemptRecord, GivingWay, RunRecord, exit_to_json
from windlass.runs.retry import Blame, Retry
from windlass.runs.types import AttemptState, EventKind, RunState
from windlass.scheduling.aside import commit_aside, decide_aside, load_last_aside
from windlass.scheduling.nodes import load_named
from windlass.tenancy.prices import PriceBook, Spent, hourly_usd, spent_on
from windlass.tracking.store import load_progress

log = logging.getLogger(__name__)

T = TypeVar("T")
_AT_ONCE = 500  # in one transaction: nobody else is to wait for it, nor the lease's next beat


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


def commit_each(
    db: Database, lease: ShardLeases, found: Mapping[str, T], apply: Callable[[Connection, Sequence[T]], None]
) -> None:
    """Apply what was decided for each run (by its id). Many at once, as nearly always nothing is in the way; else
    again, each on its own."""
    left = list(found.items())
    while left:
        some, left = left[:_AT_ONCE], left[_AT_ONCE:]
        try:
            with db.write() as tx:
                lease.beat(tx)
                apply(tx, [decided for _, decided in some])
            continue
        except LeaseLost:
            raise
        except Exception as error:
            log.info("not all of %d changes can be made at once: %s", len(some), error)
        with db.write() as tx:
            lease.beat(tx)
            for run_id, decided in some:
                with on_its_own(tx, run_id):
                    apply(tx, [decided])


def commit_placements(
    tx: Connection, placed: Sequence[tuple[RunRecord, Placement]], *, prices: PriceBook, now: float
) -> None:
    store.lock_runs(tx, [run.id for run, _ in placed])  # placed in the order of the queue, locked in that of their ids
    store.insert_attempts(tx, placed, now=now, usd_per_hour=_load_costs(tx, placed, prices))
    store.advance_all(tx, [_placing(run, placement) for run, placement in placed], now=now)


def _load_costs(tx: Connection, placed: Sequence[tuple[RunRecord, Placement]], prices: PriceBook) -> dict[str, float]:
    """By run, an hour of its placement: what its nodes cost now, since they may be gone when it ends."""
    wanted: dict[str, set[str]] = {}
    for _, placement in placed:
        wanted.setdefault(placement.engine, set()).update(share.node for share in placement.shares)
    nodes = {engine: load_named(tx, engine, names) for engine, names in wanted.items()}
    return {
        run.id: hourly_usd(placement, run.resources.gpu_type, prices, nodes[placement.engine])
        for run, placement in placed
    }


def _placing(run: RunRecord, placement: Placement) -> store.Move:
    number = run.attempt_count + 1
    names = ", ".join(share.node for share in placement.shares)
    return store.Move(
        run=run,
        kind=EventKind.PLACED,
        attempt=number,
        message=f"attempt {number} placed on {names}",
        changes={"attempt_count": number, "retry_at": None},
    )


def commit_running(
    tx: Connection, started: Sequence[tuple[RunRecord, AttemptRecord, MarkRunning]], *, now: float
) -> None:
    changes = {
        attempt.id: {"state": AttemptState.RUNNING, "started_at": decision.started_at}
        for _, attempt, decision in started
    }
    store.update_attempts(tx, changes)
    store.advance_all(tx, [_starting(run, attempt, how.started_at) for run, attempt, how in started], now=now)


def commit_end(
    tx: Connection,
    run: RunRecord,
    attempt: AttemptRecord,
    decision: EndAttempt,
    prices: PriceBook,
    *,
    now: float,
    log_dirs: Sequence[str] = (),
) -> None:
    """End the attempt and, in the same breath, say what becomes of its run."""
    decision, why = _with_reason(tx, run, decision)
    if decision.started_at is not None and run.state is RunState.STARTING:
        beginning = MarkRunning(started_at=decision.started_at)
        commit_running(tx, [(run, attempt, beginning)], now=now)
        first = run.started_at or decision.started_at
        run = replace(run, state=RunState.RUNNING, version=run.version + 1, started_at=first)
    started_at = decision.started_at or attempt.started_at
    kind, message, changes = _conclusion(decision, now, why)
    is_over = kind is not EventKind.RETRYING and started_at is not None
    store.end_attempt(
        tx, attempt, decision.exit, started_at=started_at, ended_at=decision.ended_at,
        outputs_in=output_folder(log_dirs) if is_over else None,
    )  # fmt: skip
    spent = _spent(run, attempt, started_at, decision.ended_at, prices)
    store.record_event(
        tx, run.id, EventKind.ATTEMPT_ENDED, at=now, attempt=attempt.number,
        message=f"attempt {attempt.number} ended: {describe_exit(decision.exit)}",
        data={"exit": exit_to_json(decision.exit)},
    )  # fmt: skip
    if decision.blame is not None:
        _set_aside(tx, run, attempt, decision.blame, decision.exit, now)
    if kind is EventKind.RETRYING:
        _note_progress(tx, attempt)
        if _gave_way(attempt, decision) and not _has_saved(tx, run):
            message += "; no checkpoint of it is on record, so it starts from the beginning unless it keeps its own"
    store.advance(
        tx, run, kind, now=now, attempt=attempt.number, message=message,
        cpu_hours=run.cpu_hours + spent.cpu_hours, gpu_hours=run.gpu_hours + spent.gpu_hours,
        cost_usd=run.cost_usd + spent.usd, preemptions=run.preemptions + _gave_way(attempt, decision),
        ran_s=run.ran_s + (max(0.0, decision.ended_at - started_at) if started_at is not None else 0.0), **changes,
    )  # fmt: skip


def _note_progress(tx: Connection, attempt: AttemptRecord) -> None:
    """Where it died, for the one that follows: see `comebacks`."""
    [ended] = store.load_attempts_by_id(tx, [attempt.id])
    usage = progress_at_end(ended, load_progress(tx, [attempt.run_id]).get(attempt.run_id))
    if usage is not None:
        store.update_attempts(tx, {attempt.id: {"usage": usage}})


def _gave_way(attempt: AttemptRecord, decision: EndAttempt) -> bool:
    """To another run: with all that it had, or with some of its nodes."""
    giving_way = attempt.giving_way
    return decision.exit.reason is ExitReason.PREEMPTED and giving_way is not None and giving_way.by is not None


def _has_saved(tx: Connection, run: RunRecord) -> bool:
    """In any attempt; what the last one saved when it was warned has just been written."""
    return any(attempt.saved_at is not None for attempt in store.load_attempts(tx, run.id))


def commit_giving_way(tx: Connection, found: Sequence[tuple[str, GivingWay]]) -> None:
    store.give_way(tx, dict(found))


def commit_warnings(tx: Connection, found: Sequence[tuple[AttemptRecord, StopAttempt]], *, now: float) -> None:
    """Before they are told: once for each attempt, however often it is tried. One that would make room for a run which
    waits no longer is to go on."""
    warned = load_warned(tx, [attempt for attempt, _ in found])
    waiting = load_waiting(tx, {stop.by for _, stop in found if stop.by is not None})
    for attempt, stop in found:
        if attempt.id in warned:
            continue
        if stop.by is not None and stop.by not in waiting:
            withdraw(tx, attempt)
            continue
        store.record_event(
            tx, attempt.run_id, EventKind.PREEMPTING, at=now, attempt=attempt.number,
            message=f"{stop.why}; attempt {attempt.number} is stopped with {stop.grace_s:g} s of grace",
        )  # fmt: skip


def _set_aside(tx: Connection, run: RunRecord, attempt: AttemptRecord, blame: Blame, exit: Exit, now: float) -> None:
    node, key = blame.node, (attempt.engine, blame.node)
    known = load_last_aside(tx, key)
    aside = decide_aside(known, describe_exit(exit), blame.first_s, now=now, run_id=run.id)
    if aside == known:
        return  # another run has told before
    commit_aside(tx, key, aside)
    for_s = (aside.until or now) - now
    times = f", as it failed {aside.times} times in a row" if aside.times > 1 else ""
    store.record_event(
        tx, run.id, EventKind.SET_ASIDE, at=now, attempt=attempt.number,
        message=f"node {node} is set aside for {format_duration(for_s)}{times}",
        data={"engine": attempt.engine, "node": node, "until": aside.until, "times": aside.times},
    )  # fmt: skip


def describe_exit(exit: Exit) -> str:
    """`signal SIGKILL on rank 1`, `exit code 3 on rank 0: ValueError: ...`."""
    words = {
        ExitReason.COMPLETED: "completed",
        ExitReason.EXIT_CODE: f"exit code {exit.exit_code}",
        ExitReason.SIGNAL: f"signal {_signal_name(exit.signal)}",
        ExitReason.OOM: "out of memory",
        ExitReason.TIMEOUT: "time limit reached",
        ExitReason.HANG: "hung",
        ExitReason.LOST: "lost",
        ExitReason.CANCELLED: "cancelled",
        ExitReason.PREEMPTED: "preempted",
        ExitReason.LAUNCH_FAILED: "could not be started",
    }[exit.reason]
    if exit.rank is not None and exit.reason is not ExitReason.COMPLETED:
        words += f" on rank {exit.rank}"
    return f"{words}: {exit.message}" if exit.message else words


def _starting(run: RunRecord, attempt: AttemptRecord, started_at: float) -> store.Move:
    return store.Move(
        run=run,
        kind=EventKind.STARTED,
        attempt=attempt.number,
        message=f"attempt {attempt.number} started",
        changes={"started_at": run.started_at or started_at},
    )


def _with_reason(tx: Connection, run: RunRecord, decision: EndAttempt) -> tuple[EndAttempt, str]:
    """With why it was to end, which the engine could not know; and that by itself."""
    why = load_reason(tx, run) or StopKind.CANCELLED.on_request
    if decision.exit.reason is ExitReason.CANCELLED and decision.exit.message == StopKind.CANCELLED.on_request:
        decision = replace(decision, exit=replace(decision.exit, message=why))
    return decision, why


def _conclusion(decision: EndAttempt, now: float, why_cancelled: str) -> tuple[EventKind, str, dict[str, Any]]:
    ended = {"ended_at": decision.ended_at, "exit": exit_to_json(decision.exit)}
    match decision.verdict:
        case Succeed():
            return EventKind.SUCCEEDED, "every rank completed", ended
        case Cancel():
            return EventKind.CANCELLED, why_cancelled, ended
        case Retry(after_s=0.0, why=why) if decision.exit.reason is ExitReason.PREEMPTED:
            return EventKind.RETRYING, f"stopped for now: {why}", {"retry_at": now}
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
    usd_per_hour = attempt.usd_per_hour
    if usd_per_hour is None:  # placed by a server of the version before
        usd_per_hour = hourly_usd(attempt.placement, run.resources.gpu_type, prices)
    return spent_on(attempt.placement, usd_per_hour, ended_at - started_at)


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return str(number)
