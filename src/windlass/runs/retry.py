"""Whether a failed attempt is tried again, and when. Pure: the history comes in, a decision goes out.

| exit | tried again |
|---|---|
| preempted | always, not counted: it says nothing about the run |
| lost, killed from outside (SIGKILL, SIGTERM, SIGHUP ...) | up to `max` |
| out of memory | once, then it is the run's own need |
| traceback, exit code, crash signal (SIGSEGV ...) | only if the spec has `retry`; the same failure twice ends it |
| timeout, cancelled, launch failed | never |
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from windlass.core.exits import Exit, ExitReason

DEFAULT_MAX = 3
DEFAULT_BACKOFF_S = 2.0
LONGEST_BACKOFF_S = 300.0
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    max: int = DEFAULT_MAX
    backoff_s: float = DEFAULT_BACKOFF_S
    errors_too: bool = False  # also failures of the program itself, not only of its surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    after_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    why: str


def decide_retry(exits: Sequence[Exit], policy: RetryPolicy, *, jitter: float) -> Retry | GiveUp:
    """`exits`: how the attempts since submission or resumption ended, the newest last. `jitter` is from [0, 1)."""
    last = exits[-1]
    if last.reason is ExitReason.PREEMPTED:
        in_a_row = sum(1 for _ in takewhile(lambda exit: exit.reason is ExitReason.PREEMPTED, reversed(exits)))
        after_s = _backoff_s(policy, in_a_row - 1, jitter)
        return Retry(after_s=after_s, why="it was preempted and goes on when there is room")
    exits = [exit for exit in exits if exit.reason is not ExitReason.PREEMPTED]
    retries = len(exits) - 1
    if refusal := _refusal(exits, policy):
        return GiveUp(why=refusal)
    if retries >= policy.max:
        if policy.max == 0:
            return GiveUp(why="retries are off")
        return GiveUp(why=f"failed {len(exits)} times; the limit is {policy.max} retries")
    after_s = _backoff_s(policy, retries, jitter)
    return Retry(after_s=after_s, why=f"{last.reason} may pass; retry {retries + 1} of {policy.max}")


def _backoff_s(policy: RetryPolicy, before: int, jitter: float) -> float:
    """Full jitter over the upper half: spreads a crowd, never returns at once."""
    return min(policy.backoff_s * 2.0 ** min(before, 64), LONGEST_BACKOFF_S) * (0.5 + 0.5 * jitter)


def _refusal(exits: Sequence[Exit], policy: RetryPolicy) -> str | None:
    last = exits[-1]
    if last.reason in (ExitReason.TIMEOUT, ExitReason.CANCELLED, ExitReason.LAUNCH_FAILED):
        return f"{last.reason} is final"
    if last.reason is ExitReason.OOM and sum(e.reason is ExitReason.OOM for e in exits) > 1:
        return "out of memory again; ask for more memory or make the batch smaller"
    if is_own_failure(last):
        if not policy.errors_too:
            return "the program failed by itself; add `retry: {max: N}` to the spec to try again all the same"
        if _same_failure_before(exits):
            return "the same failure twice: trying again would not help"
    return None


def is_own_failure(exit: Exit) -> bool:
    """The program's doing, most likely to repeat; as opposed to something that was done to it."""
    if exit.reason is ExitReason.SIGNAL:
        return exit.signal in _CRASHES
    return exit.reason is ExitReason.EXIT_CODE


def _same_failure_before(exits: Sequence[Exit]) -> bool:
    last = exits[-1]
    return last.fingerprint is not None and any(e.fingerprint == last.fingerprint for e in exits[:-1])
