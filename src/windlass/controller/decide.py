"""What to do about one attempt, given what its engine says of it. Pure: snapshots in, decisions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from windlass.agent.remedy import NODE
from windlass.core.exits import Exit, ExitReason
from windlass.core.storable import storable_text
from windlass.engines.contract import Notice, Observation, Phase, StopKind
from windlass.runs.records import AttemptRecord, RunRecord, ended_attempt
from windlass.runs.retry import Blame, Ended, GiveUp, Retry, decide_blame, decide_retry
from windlass.runs.types import AttemptState


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttempt:
    """The engine does not have it (yet): hand it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAttempt:
    grace_s: float
    kind: StopKind = StopKind.CANCELLED
    why: str = ""
    by: str | None = None  # the run that it makes room for


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRunning:
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAttempt:
    exit: Exit
    started_at: float | None
    ended_at: float
    verdict: Succeed | Cancel | GiveUp | Retry
    blame: Blame | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeed:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    pass


Decision = LaunchAttempt | StopAttempt | MarkRunning | EndAttempt


def decide_attempt(
    run: RunRecord,
    attempt: AttemptRecord,
    seen: Observation,
    earlier: Sequence[Ended],
    *,
    now: float,
    jitter: float,
) -> list[Decision]:
    """`earlier`: the attempts before this one, since submission or the last resume."""
    if seen.phase is Phase.UNKNOWN:
        return _ask_to_stop(run)
    if seen.phase is Phase.ENDED and seen.exit is not None:
        return [_end(run, attempt, _with_node(seen.exit, attempt), seen, earlier, now, jitter)]
    if seen.phase is Phase.ABSENT:
        if run.cancelling:
            never_started = Exit(reason=ExitReason.CANCELLED, message="cancelled before it started")
            return [_end(run, attempt, never_started, seen, earlier, now, jitter)]
        if attempt.state is AttemptState.RUNNING:
            gone = Exit(reason=ExitReason.LOST, message=f"engine {attempt.engine} does not know it any more")
            return [_end(run, attempt, gone, seen, earlier, now, jitter)]
        return [LaunchAttempt()]
    decisions: list[Decision] = []
    if seen.phase is Phase.RUNNING and attempt.state is AttemptState.STARTING:
        decisions.append(MarkRunning(started_at=seen.started_at or now))
    if run.cancelling:
        decisions += _ask_to_stop(run)
    elif seen.notice is not None:
        decisions.append(_give_way(run, seen.notice, now))
    elif attempt.giving_way is not None:
        why, by = attempt.giving_way.why, attempt.giving_way.by
        decisions.append(StopAttempt(grace_s=run.spec.grace, kind=StopKind.PREEMPTED, why=why, by=by))
    return decisions


def decide_failed_launch(
    run: RunRecord, attempt: AttemptRecord, message: str, earlier: Sequence[Ended], *, now: float, jitter: float
) -> EndAttempt:
    exit = Exit(reason=ExitReason.LAUNCH_FAILED, message=message)
    return _end(run, attempt, exit, Observation(phase=Phase.ABSENT), earlier, now, jitter)


def _ask_to_stop(run: RunRecord) -> list[Decision]:
    if not run.cancelling:
        return []
    return [StopAttempt(grace_s=10.0 if run.cancel_grace_s is None else run.cancel_grace_s)]


def is_news(stop: StopAttempt, sent: StopAttempt | None) -> bool:
    """Whether the engine must hear of `stop` after `sent`. The grace of a notice gets shorter with every pass; that
    alone is no reason to hasten what was asked for already."""
    if sent is None or sent.kind is not stop.kind:
        return True
    return stop.kind is StopKind.CANCELLED and stop.grace_s != sent.grace_s


def _give_way(run: RunRecord, notice: Notice, now: float) -> StopAttempt:
    """A warned stop while there is still time for it: the next attempt continues elsewhere."""
    grace_s = run.spec.grace
    if notice.deadline is not None:
        grace_s = min(grace_s, max(0.0, notice.deadline - now))
    return StopAttempt(grace_s=grace_s, kind=StopKind.PREEMPTED, why=notice.message)


def _end(
    run: RunRecord,
    attempt: AttemptRecord,
    exit: Exit,
    seen: Observation,
    earlier: Sequence[Ended],
    now: float,
    jitter: float,
) -> EndAttempt:
    verdict: Succeed | Cancel | GiveUp | Retry
    blame = None
    # Programs say what they like when they fail; what cannot be written would stop every pass from here on.
    traceback = None if exit.traceback is None else storable_text(exit.traceback)
    exit = replace(exit, message=storable_text(exit.message), traceback=traceback)
    ended_at = seen.ended_at or now
    started_at = seen.started_at
    if exit.reason is ExitReason.COMPLETED:
        verdict = Succeed()
        started_at = ended_at if started_at is None else started_at  # what has completed must have run
    elif run.cancelling or exit.reason is ExitReason.CANCELLED:
        verdict = Cancel()
    else:
        exit = _with_trouble(exit, earlier)
        this = ended_attempt(attempt, exit, earlier[-1] if earlier else None, seen.usage)
        verdict = decide_retry([*earlier, this], run.retry_policy, jitter=jitter)
        if isinstance(verdict, Retry) and exit.reason is ExitReason.PREEMPTED and attempt.giving_way is not None:
            # The scheduler says when it goes on: a pause on top would only leave room idle. Engines know that it was
            # asked to stop, not why.
            verdict = Retry(after_s=0.0, why=attempt.giving_way.why)
            exit = replace(exit, message=attempt.giving_way.why)
        blame = decide_blame([*(ended.exit for ended in earlier), exit])
        if isinstance(verdict, Retry) and _out_of_time(run, started_at or attempt.started_at, ended_at):
            verdict = GiveUp(why="the run's time limit would be over before another attempt")
    return EndAttempt(exit=exit, started_at=started_at, ended_at=ended_at, verdict=verdict, blame=blame)


def _with_node(exit: Exit, attempt: AttemptRecord) -> Exit:
    """Engines know nodes of an attempt by their ranks."""
    shares = attempt.placement.shares
    if exit.node_rank is None or not 0 <= exit.node_rank < len(shares):
        return exit
    return replace(exit, node=shares[exit.node_rank].node)


def _with_trouble(exit: Exit, earlier: Sequence[Ended]) -> Exit:
    """What has run before and cannot be started on a node, for want of a folder or an interpreter there, is turned away
    by that node: it may do better elsewhere."""
    has_run = any(ended.has_run for ended in earlier)
    if exit.reason is not ExitReason.LAUNCH_FAILED or exit.node is None or exit.trouble is not None or not has_run:
        return exit
    return replace(exit, trouble=NODE)


def _out_of_time(run: RunRecord, started_at: float | None, ended_at: float) -> bool:
    """With this attempt. The time in which it waits between attempts does not count."""
    timeout_s = run.spec.timeout
    ran_s = run.ran_s + (ended_at - started_at if started_at is not None else 0.0)
    return timeout_s is not None and ran_s >= timeout_s
