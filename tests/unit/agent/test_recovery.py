"""When ranks start again in place, and what is put on record about it."""

from __future__ import annotations

import signal

import pytest

from windlass.agent import patterns
from windlass.agent.comeback import Comeback, forget_progress, newest_step
from windlass.agent.progress import NOTHING, Progress, ProgressFile
from windlass.agent.recovery import Failed, Past, Policy, decide_in_place, render_recovery
from windlass.agent.verdict import Verdict

POLICY = Policy(most=3, errors_too=False)
ERRORS_TOO = Policy(most=3, errors_too=True)
KILLED = Verdict("signal", "rank 1 was killed by SIGKILL", signal_number=signal.SIGKILL, rank=1)
RAISED = Verdict("exit_code", "ValueError: spoilt", exit_code=1, rank=0, fingerprint="f")
FURTHER = Past(step=10)


@pytest.mark.parametrize(
    ("verdict", "policy", "past", "again"),
    [
        (KILLED, POLICY, FURTHER, True),
        (KILLED, None, FURTHER, False),
        (KILLED, Policy(most=0, errors_too=True), FURTHER, False),
        (KILLED, POLICY, Past(step=10, in_a_row=2), True),
        (KILLED, POLICY, Past(step=10, in_a_row=3), False),
        (KILLED, POLICY, Past(), True),  # nobody tells steps: once
        (KILLED, POLICY, Past(in_a_row=1), False),
        (Verdict("hang", "no step for 5 min"), POLICY, FURTHER, True),
        (RAISED, POLICY, FURTHER, False),
        (RAISED, ERRORS_TOO, FURTHER, True),
        (RAISED, ERRORS_TOO, Past(), False),  # at its beginning: it will fail again
        (RAISED, ERRORS_TOO, Past(step=10, in_a_row=1), False),
        (RAISED, ERRORS_TOO, FURTHER.restarted(RAISED).after(20), False),  # the same failure twice
        (RAISED._replace(fingerprint="g"), ERRORS_TOO, FURTHER.restarted(RAISED).after(20), True),
        (Verdict("signal", "", signal_number=signal.SIGSEGV), POLICY, FURTHER, False),
        (Verdict("oom", ""), POLICY, FURTHER, False),
        (Verdict("timeout", ""), ERRORS_TOO, FURTHER, False),
        (RAISED._replace(trouble=patterns.DEVICE_ERROR), POLICY, FURTHER, True),
        (RAISED._replace(trouble=patterns.DEVICE_BROKEN), ERRORS_TOO, FURTHER, False),  # not on this node
    ],
)
def test_which_failures_start_them_again(verdict: Verdict, policy: Policy | None, past: Past, again: bool) -> None:
    assert (decide_in_place(verdict, policy, past) is None) is again


def test_a_device_error_is_tried_once() -> None:
    broken = RAISED._replace(trouble=patterns.DEVICE_ERROR)
    assert decide_in_place(broken, POLICY, FURTHER.restarted(broken).after(20)) is not None


def test_new_steps_count_from_anew() -> None:
    past = Past().after(5).restarted(KILLED).restarted(KILLED)
    assert (past.step, past.in_a_row) == (5, 2)
    assert past.after(5) == past
    assert past.after(-1) == past
    assert past.after(6).in_a_row == 0


def failed(step: int = 10) -> Failed:
    return Failed(
        verdict=KILLED,
        generation=2,
        node="n",
        step=step,
        wall_at=1e9,
        failed_at=100.0,
        noticed_at=100.1,
        decided_at=100.2,
    )


def rank(step: int, stepped_at: float, restored_step: int = 9, restored_at: float = 101.0) -> Progress:
    return Progress(step, restored_step, stepped_at, restored_at, 0.5, 1)


def test_the_times_add_up_to_the_first_new_step() -> None:
    entry = render_recovery(failed(), 100.3, [rank(11, 102.0), rank(10, 101.9, restored_at=101.2)], 103.0)
    assert (entry["generation"], entry["rank"], entry["step"], entry["restored_step"]) == (2, 1, 10, 9)
    assert entry["steps_lost"] == 1
    names = ("detect_s", "decide_s", "respawn_s", "load_s", "replay_s")
    assert [entry[name] for name in names] == pytest.approx([0.1, 0.1, 0.5, 0.5, 0.8])
    assert sum(entry[name] for name in names) == pytest.approx(2.0)


def test_what_is_not_known_is_not_made_up() -> None:
    entry = render_recovery(failed(), 100.3, [NOTHING, NOTHING], 103.0)
    assert (entry["restored_step"], entry["load_s"], entry["replay_s"]) == (None, None, None)
    assert (entry["steps_lost"], entry["respawn_s"]) == (10, 0.1)  # they began anew
    silent = render_recovery(failed(step=-1), 100.3, [], 103.0)
    assert (silent["step"], silent["steps_lost"], silent["replay_s"]) == (None, None, None)


def test_a_comeback_ends_with_the_first_step_beyond_the_last(tmp_path: object) -> None:
    folder = str(tmp_path)
    first = ProgressFile(f"{folder}/progress-0")
    first.stepped(10)
    assert newest_step(folder) == 10
    forget_progress(folder)
    assert newest_step(folder) == -1
    comeback = Comeback(folder, failed(), 100.3)
    assert comeback.look(100.4) is None
    assert comeback.look_at > 100.4
    second = ProgressFile(f"{folder}/progress-0")
    second.restored(9, 0.01)
    second.stepped(10)
    assert comeback.look(101.0) is None
    second.stepped(11)
    entry = comeback.look(1e9)
    assert entry is not None
    assert entry["steps_lost"] == 1
