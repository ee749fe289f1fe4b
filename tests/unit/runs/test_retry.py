from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.exits import Exit, ExitReason
from windlass.runs.retry import LONGEST_BACKOFF_S, GiveUp, Retry, RetryPolicy, decide_retry

PATIENT = RetryPolicy(max=10, errors_too=True)
LOST = Exit(reason=ExitReason.LOST)
OOM = Exit(reason=ExitReason.OOM)


def error(fingerprint: str | None = None) -> Exit:
    return Exit(reason=ExitReason.EXIT_CODE, exit_code=1, fingerprint=fingerprint)


@pytest.mark.parametrize(
    ("ended", "policy", "retried"),
    [
        (LOST, RetryPolicy(), True),
        (Exit(reason=ExitReason.SIGNAL, signal=signal.SIGKILL), RetryPolicy(), True),
        (Exit(reason=ExitReason.SIGNAL, signal=signal.SIGTERM), RetryPolicy(), True),
        (Exit(reason=ExitReason.SIGNAL, signal=signal.SIGSEGV), RetryPolicy(), False),
        (Exit(reason=ExitReason.SIGNAL, signal=signal.SIGSEGV), PATIENT, True),
        (OOM, RetryPolicy(), True),
        (error(), RetryPolicy(), False),
        (error(), PATIENT, True),
        (Exit(reason=ExitReason.TIMEOUT), PATIENT, False),
        (Exit(reason=ExitReason.CANCELLED), PATIENT, False),
        (Exit(reason=ExitReason.LAUNCH_FAILED), PATIENT, False),
        (LOST, RetryPolicy(max=0), False),
    ],
)
def test_the_table(ended: Exit, policy: RetryPolicy, retried: bool) -> None:
    assert isinstance(decide_retry([ended], policy, jitter=0.5), Retry) is retried


def test_out_of_memory_is_tried_once_more() -> None:
    again = decide_retry([OOM, LOST, OOM], PATIENT, jitter=0)
    assert isinstance(again, GiveUp)
    assert "ask for more memory" in again.why


def test_the_same_failure_twice_is_final_and_another_one_is_not() -> None:
    assert isinstance(decide_retry([error("a"), error("b")], PATIENT, jitter=0), Retry)
    same = decide_retry([error("a"), error("b"), error("a")], PATIENT, jitter=0)
    assert isinstance(same, GiveUp)
    assert "the same failure twice" in same.why


def test_failures_without_a_fingerprint_are_never_the_same() -> None:
    assert isinstance(decide_retry([error(None), error(None)], PATIENT, jitter=0), Retry)


def test_a_refusal_says_what_to_do() -> None:
    refused = decide_retry([error()], RetryPolicy(), jitter=0)
    assert isinstance(refused, GiveUp)
    assert "add `retry: {max: N}` to the spec" in refused.why


exits = st.builds(
    Exit,
    reason=st.sampled_from(ExitReason),
    signal=st.sampled_from([None, 6, 9, 11, 15]),
    fingerprint=st.sampled_from([None, "a", "b"]),
)
policies = st.builds(RetryPolicy, max=st.integers(0, 5), backoff_s=st.floats(0, 100), errors_too=st.booleans())


@given(st.lists(exits, min_size=1, max_size=12), policies, st.floats(0, 1, exclude_max=True))
def test_never_more_retries_than_allowed_and_the_backoff_has_bounds(
    history: list[Exit], policy: RetryPolicy, jitter: float
) -> None:
    decision = decide_retry(history, policy, jitter=jitter)
    counted = [exit for exit in history if exit.reason is not ExitReason.PREEMPTED]
    if history[-1].reason is ExitReason.PREEMPTED:
        assert isinstance(decision, Retry)
        assert decision.after_s <= LONGEST_BACKOFF_S
    elif isinstance(decision, Retry):
        assert len(counted) <= policy.max
        longest = min(policy.backoff_s * 2 ** (len(counted) - 1), LONGEST_BACKOFF_S)
        assert longest / 2 <= decision.after_s <= longest
    assert decision.why


@given(st.integers(0, 400))
def test_a_very_long_history_does_not_overflow(length: int) -> None:
    decision = decide_retry([LOST] * (length + 1), RetryPolicy(max=1_000), jitter=0)
    assert isinstance(decision, Retry)
    assert decision.after_s <= LONGEST_BACKOFF_S
