"""Runs and attempts: their states, the one table of allowed changes, and the one function that makes a change."""

from __future__ import annotations

from enum import StrEnum

from windlass.core.errors import InvalidTransition


class RunState(StrEnum):
    QUEUED = "queued"  # waits for resources
    STARTING = "starting"  # placed; its attempt is being launched
    RUNNING = "running"  # every rank has been started
    RECOVERING = "recovering"  # an attempt failed; the next one waits for its backoff and its resources
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)

    @property
    def is_waiting(self) -> bool:
        """Holds no resources but will ask for them."""
        return self in (RunState.QUEUED, RunState.RECOVERING)

    @property
    def is_live(self) -> bool:
        """Has an attempt that holds resources."""
        return self in (RunState.STARTING, RunState.RUNNING)


TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.STARTING, RunState.CANCELLED, RunState.FAILED}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.RECOVERING, RunState.FAILED, RunState.CANCELLED}),
    RunState.RUNNING: frozenset({RunState.SUCCEEDED, RunState.RECOVERING, RunState.FAILED, RunState.CANCELLED}),
    RunState.RECOVERING: frozenset({RunState.STARTING, RunState.FAILED, RunState.CANCELLED}),
    RunState.SUCCEEDED: frozenset(),
    # A failed or cancelled run can be resumed: it goes on under the same id.
    RunState.FAILED: frozenset({RunState.QUEUED}),
    RunState.CANCELLED: frozenset({RunState.QUEUED}),
}


def transition(current: RunState, target: RunState) -> RunState:
    if target not in TRANSITIONS[current]:
        allowed = ", ".join(sorted(TRANSITIONS[current])) or "none"
        raise InvalidTransition(f"a run that is {current} cannot become {target}; possible: {allowed}")
    return target


class AttemptState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class EventKind(StrEnum):
    """What happened to a run. Every change of state is one of these; some say more."""

    SUBMITTED = "submitted"
    PLACED = "placed"
    STARTED = "started"
    ATTEMPT_ENDED = "attempt_ended"
    RETRYING = "retrying"
    RECOVERED = "recovered"  # it has gone beyond where a failure threw it back: level, steps lost, times
    SET_ASIDE = "set_aside"  # a node that failed it is not used for a while
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PREEMPTING = "preempting"  # a warned stop: others need its room, or its node goes away. Once for an attempt
    ALERT = "alert"  # raised by one of its processes, by `windlass.job.alert`
    CHECKPOINT = "checkpoint"  # saved, found corrupt, removed by somebody
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    RESUMED = "resumed"


# The state a run is in after an event of this kind; kinds that change no state are not here.
STATE_AFTER: dict[EventKind, RunState] = {
    EventKind.SUBMITTED: RunState.QUEUED,
    EventKind.PLACED: RunState.STARTING,
    EventKind.STARTED: RunState.RUNNING,
    EventKind.RETRYING: RunState.RECOVERING,
    EventKind.SUCCEEDED: RunState.SUCCEEDED,
    EventKind.FAILED: RunState.FAILED,
    EventKind.CANCELLED: RunState.CANCELLED,
    EventKind.RESUMED: RunState.QUEUED,
}
