from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.agent import patterns, remedy
from windlass.agent.recovery import Past, Policy, decide_in_place
from windlass.agent.verdict import Verdict
from windlass.core.exits import Exit, ExitReason
from windlass.runs.retry import LONGEST_BACKOFF_S, Ended, GiveUp, Retry, RetryPolicy, decide_blame, decide_retry

PATIENT = RetryPolicy(max=10, errors_too=True)
LOST = Exit(reason=ExitReason.LOST)
OOM = Exit(reason=ExitReason.OOM)


def after(*exits: Exit) -> list[Ended]:
    """Of attempts that told no steps."""
    return [Ended(exit=exit) for exit in exits]


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
    assert isinstance(decide_retry(after(ended), policy, jitter=0.5), Retry) is retried


def test_out_of_memory_is_tried_once_more() -> None:
    again = decide_retry(after(OOM, LOST, OOM), PATIENT, jitter=0)
    assert isinstance(again, GiveUp)
    assert "ask for more memory" in again.why


def test_the_same_failure_twice_is_final_and_another_one_is_not() -> None:
    assert isinstance(decide_retry(after(error("a"), error("b")), PATIENT, jitter=0), Retry)
    same = decide_retry(after(error("a"), error("b"), error("a")), PATIENT, jitter=0)
    assert isinstance(same, GiveUp)
    assert "the same failure twice" in same.why


def test_failures_without_a_fingerprint_are_never_the_same() -> None:
    assert isinstance(decide_retry(after(error(None), error(None)), PATIENT, jitter=0), Retry)


def test_a_refusal_says_what_to_do() -> None:
    refused = decide_retry(after(error()), RetryPolicy(), jitter=0)
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
    decision = decide_retry(after(*history), policy, jitter=jitter)
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
    decision = decide_retry(after(*[LOST] * (length + 1)), RetryPolicy(max=1_000), jitter=0)
    assert isinstance(decision, Retry)
    assert decision.after_s <= LONGEST_BACKOFF_S


def lost(*steps: int | None) -> list[Ended]:
    """One attempt after the other, each lost at one of `steps`."""
    return [Ended(exit=LOST, step=step) for step in steps]


def test_new_steps_begin_the_count_of_retries_anew() -> None:
    again = decide_retry(lost(*range(1_000, 20_000, 1_000)), RetryPolicy(backoff_s=2.0), jitter=0)
    assert again == Retry(after_s=1.0, why="lost may pass; retry 1 of 3")


@pytest.mark.parametrize(
    ("steps", "retries"),
    [
        ((None, None, None, 10), 0),  # the first that came anywhere
        ((10, 20, 20), 1),
        ((10, 20, None, 15), 2),
        ((1_000, 950, 951, 952), 3),  # further than the one before is not yet further than all of them
        ((0, None), 1),
    ],
)
def test_only_attempts_that_brought_nothing_new_count(steps: tuple[int | None, ...], retries: int) -> None:
    decision = decide_retry(lost(*steps), RetryPolicy(max=10), jitter=0)
    assert decision.why == f"lost may pass; retry {retries + 1} of 10"
    assert isinstance(decide_retry(lost(*steps), RetryPolicy(max=max(1, retries)), jitter=0), GiveUp) is (retries > 0)


def test_what_is_tried_once_is_so_whatever_came_of_it() -> None:
    ended = [Ended(exit=exit, step=step) for exit, step in ((OOM, 10), (LOST, 500), (OOM, 1_000))]
    assert isinstance(decide_retry(ended, PATIENT, jitter=0), GiveUp)
    ended = [Ended(exit=error("a"), step=step) for step in (10, 500)]
    assert isinstance(decide_retry(ended, PATIENT, jitter=0), GiveUp)


def troubled(trouble: str | None, *, node: str | None = "n", reason: ExitReason = ExitReason.EXIT_CODE) -> Exit:
    return Exit(reason=reason, exit_code=1, trouble=trouble, node=node)


@pytest.mark.parametrize(
    ("trouble", "retried"),
    [
        (patterns.DEVICE_BROKEN, True),
        (patterns.DEVICE_ERROR, True),
        (patterns.NETWORK, True),
        (patterns.DISK_FULL, True),
        (patterns.NAN, False),
        ("of a newer version", False),
    ],
)
def test_what_kind_of_trouble_it_was_says_more_than_the_exit_code(trouble: str, retried: bool) -> None:
    assert isinstance(decide_retry(after(troubled(trouble)), RetryPolicy(), jitter=0), Retry) is retried


def test_a_device_error_is_tried_once_more() -> None:
    error = troubled(patterns.DEVICE_ERROR)
    again = decide_retry(after(error, LOST, error), PATIENT, jitter=0)
    assert isinstance(again, GiveUp)
    assert "CUDA_LAUNCH_BLOCKING" in again.why


def test_a_full_disk_is_named_when_it_is_given_up() -> None:
    given_up = decide_retry(after(*[troubled(patterns.DISK_FULL)] * 4), RetryPolicy(), jitter=0)
    assert isinstance(given_up, GiveUp)
    assert "make room" in given_up.why


HANG, LOST_ON_N = Exit(reason=ExitReason.HANG, node="n"), Exit(reason=ExitReason.LOST, node="n")
PREEMPTED = Exit(reason=ExitReason.PREEMPTED, node="n")


@pytest.mark.parametrize(
    ("exits", "blamed"),
    [
        ([troubled(patterns.DEVICE_BROKEN)], "n"),
        ([troubled(patterns.DEVICE_BROKEN, node=None)], None),
        ([troubled(remedy.NODE, reason=ExitReason.LOST)], "n"),
        ([troubled(None)], None),
        ([troubled(patterns.NETWORK)], None),
        ([LOST_ON_N], None),
        ([LOST_ON_N, HANG], "n"),
        ([LOST_ON_N, PREEMPTED, LOST_ON_N], "n"),
        ([LOST_ON_N, Exit(reason=ExitReason.LOST, node="m")], None),
        ([LOST_ON_N, troubled(None), LOST_ON_N], None),
        ([PREEMPTED, PREEMPTED], None),
    ],
)
def test_which_node_is_to_blame(exits: list[Exit], blamed: str | None) -> None:
    found = decide_blame(exits)
    assert (found.node if found is not None else None) == blamed


def test_a_node_that_is_gone_is_as_good_as_new_when_it_is_back() -> None:
    gone = decide_blame([troubled(remedy.NODE, reason=ExitReason.LOST)])
    broken = decide_blame([troubled(patterns.DEVICE_BROKEN)])
    assert gone is not None
    assert broken is not None
    assert (gone.first_s, broken.first_s) == (60.0, 1_800.0)


@given(st.lists(exits, min_size=1, max_size=5))
def test_only_a_node_that_is_known_is_blamed(history: list[Exit]) -> None:
    assert decide_blame(history) is None


def test_supervisors_and_controller_go_by_one_table() -> None:
    """What is worth starting again in place is worth another attempt, under the same policy."""
    ends = [
        (reason, number, trouble) for reason in ExitReason for number in (None, 6, 9, 11, 15) for trouble in TROUBLES
    ]
    for reason, number, trouble in ends:
        for errors_too in (False, True):
            verdict = Verdict(reason.value, "", signal_number=number, trouble=trouble)
            past = Past(step=3)
            in_place = decide_in_place(verdict, Policy(3, errors_too), past) is None
            exit = Exit(reason=reason, signal=number, trouble=trouble)
            again = decide_retry(after(exit), RetryPolicy(max=3, errors_too=errors_too), jitter=0)
            assert not in_place or isinstance(again, Retry), (reason, number, trouble)


TROUBLES = (None, remedy.NODE, *sorted({pattern.trouble for pattern in patterns.TABLE}))
