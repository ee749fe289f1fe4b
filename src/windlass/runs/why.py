"""Why a run is in the state it is in: what it waits for, where it is, or what ended it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from windlass.core.exits import Exit, ExitReason
from windlass.core.quantities import format_duration, format_roughly
from windlass.runs import store
from windlass.runs.leaving import load_reason
from windlass.runs.queue import QueueDesk
from windlass.runs.records import AttemptRecord, RunRecord
from windlass.runs.types import STATE_AFTER, RunState
from windlass.wire.runs import Why


def explain_run(tx: Connection, run: RunRecord, desk: QueueDesk, *, now: float) -> Why:
    tried = store.load_attempts(tx, run.id)
    history = describe_attempts(tried)
    if run.state is RunState.RECOVERING and run.retry_at is not None and run.retry_at > now:
        summary = f"waits {format_duration(run.retry_at - now)} before attempt {run.attempt_count + 1}"
        return _why(run, summary, history)
    if run.state.is_waiting:
        answer = desk.explain(tx, run.id, now=now)
        if answer is not None:
            found = answer.explanation
            return Why(
                run_id=run.id,
                state=run.state,
                summary=found.summary,
                details=[*found.details, *history],
                position=found.position,
                queued=answer.queued,
                start=answer.start,
            )
        return _why(run, "is being cancelled" if run.cancelling else "is about to start", history)
    if run.state.is_live:
        held = ", ".join(share.node for share in tried[-1].placement.shares) if tried else "no node"
        since = run.started_at or run.queued_at
        verb = "is being cancelled" if run.cancelling else f"is {run.state}"
        if tried and (since_when := tried[-1].unknown_since) is not None:
            verb = f"was {run.state} when its engine was last in touch, {format_duration(now - since_when)} ago"
        elif tried and (giving_way := tried[-1].giving_way) is not None and not run.cancelling:
            verb = f"is being stopped: {giving_way.why}"
        summary = f"{verb}: attempt {run.attempt_count} on {held}, {format_duration(now - since)} so far"
        said = [f"{tried[-1].engine} says: {tried[-1].detail}"] if tried and tried[-1].detail else []
        said += _growing(run, tried[-1]) if tried else []
        said += [why] if (why := load_reason(tx, run)) else []
        return _why(run, summary, [*said, *history])
    moves = [event for event in store.load_events(tx, run.id) if event.kind in STATE_AFTER]
    traceback = run.exit.traceback.splitlines() if run.exit is not None and run.exit.traceback else []
    return _why(run, f"{run.state}: {moves[-1].message}" if moves else str(run.state), [*traceback, *history])


def _growing(run: RunRecord, attempt: AttemptRecord) -> list[str]:
    """What an elastic run with fewer nodes than it could have waits for."""
    elastic = run.spec.elastic
    count = len(attempt.placement.shares)
    if elastic is None or count >= elastic.max_nodes:
        return []
    if elastic.grow_every is None:
        return [f"it is on {count} of up to {elastic.max_nodes} nodes, and takes more when it is started again"]
    return [
        f"it is on {count} of up to {elastic.max_nodes} nodes; it grows when more have been free for a while, no run "
        f"waits for them and it has a checkpoint, {format_duration(elastic.grow_every)} after its start at the earliest"
    ]


def describe_attempts(attempts: Sequence[AttemptRecord]) -> list[str]:
    """How those that have ended did."""
    return [_ending(attempt, attempt.exit) for attempt in attempts if attempt.exit is not None]


def _ending(attempt: AttemptRecord, exit: Exit) -> str:
    """`attempt 1 ended: preempted: it makes room for run r-… (costs about 4 min of GPU time)`."""
    said = f"attempt {attempt.number} ended: {exit.reason}" + (f": {exit.message}" if exit.message else "")
    way, has_gpus = attempt.giving_way, any(share.gpu_indices for share in attempt.placement.shares)
    if way is None or exit.reason is not ExitReason.PREEMPTED or not way.lost_gpu_s or not has_gpus:
        return said
    return f"{said} (costs about {format_roughly(way.lost_gpu_s)} of GPU time)"


def _why(run: RunRecord, summary: str, details: list[str]) -> Why:
    return Why(run_id=run.id, state=run.state, summary=summary, details=details)
