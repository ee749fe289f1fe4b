from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from windlass.agent.remedy import NODE
from windlass.controller.commit import describe_exit
from windlass.controller.decide import (
    Cancel,
    EndAttempt,
    LaunchAttempt,
    MarkRunning,
    StopAttempt,
    Succeed,
    decide_attempt,
    decide_failed_launch,
)
from windlass.controller.launching import render_launch
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import NodeShare, Placement, Resources
from windlass.engines.contract import Observation, Phase
from windlass.runs.command import fill_command
from windlass.runs.records import AttemptRecord, RunRecord
from windlass.runs.retry import Blame, Ended, GiveUp, Retry
from windlass.runs.types import AttemptState, RunState
from windlass.wire.spec import parse_spec

NOW = 1_000.0
LOST = Exit(reason=ExitReason.LOST)
DONE = Exit(reason=ExitReason.COMPLETED, exit_code=0)


def make_run(state: RunState = RunState.RUNNING, *, started_at: float | None = 900.0, **spec: Any) -> RunRecord:
    parsed = parse_spec({"command": "python t.py", "code": None, **spec})
    return RunRecord(
        id="r-1", name="name", project="default", user=None, state=state, version=3,
        spec_data=parsed.model_dump(mode="json"), argv=fill_command(parsed), tags={}, seed=7, code_digest=None,
        origin={},
        clone_of=None, submitted_at=0.0, queued_at=0.0, started_at=started_at, ended_at=None, retry_at=None,
        cancel_requested_at=None, cancel_grace_s=None, priority=10, resources=Resources(), attempt_count=1,
        first_attempt=1, exit=None, cpu_hours=0.0, gpu_hours=0.0, cost_usd=0.0, request_digest=None,
    )  # fmt: skip


def make_attempt(state: AttemptState = AttemptState.RUNNING) -> AttemptRecord:
    placement = Placement(engine="fake", shares=(NodeShare(node="n", cpus=1, memory_bytes=0),))
    return AttemptRecord(
        id="r-1.1", run_id="r-1", number=1, state=state, engine="fake", placement=placement, created_at=0.0,
        started_at=None, ended_at=None, released_at=None, exit=None, log_dirs=(), environment_digest=None, usage=None,
    )  # fmt: skip


def cancelling(run: RunRecord, grace_s: float | None = 3.0) -> RunRecord:
    return dataclasses.replace(run, cancel_requested_at=NOW - 1, cancel_grace_s=grace_s)


def decide(run: RunRecord, seen: Observation, state: AttemptState = AttemptState.RUNNING) -> list[Any]:
    return list(decide_attempt(run, make_attempt(state), seen, [], now=NOW, jitter=0.5))


def ended(exit: Exit) -> Observation:
    return Observation(phase=Phase.ENDED, started_at=950.0, ended_at=990.0, exit=exit)


def test_what_cannot_be_seen_is_left_alone() -> None:
    for state in AttemptState:
        assert decide(make_run(), Observation(phase=Phase.UNKNOWN), state) == []


def test_what_cannot_be_seen_can_be_asked_to_stop() -> None:
    [decision] = decide(cancelling(make_run()), Observation(phase=Phase.UNKNOWN), AttemptState.RUNNING)
    assert isinstance(decision, StopAttempt)


def test_what_the_engine_does_not_have_is_handed_over() -> None:
    absent = Observation(phase=Phase.ABSENT)
    assert decide(make_run(RunState.STARTING), absent, AttemptState.STARTING) == [LaunchAttempt()]


def test_what_was_running_and_is_gone_is_lost() -> None:
    [decision] = decide(make_run(), Observation(phase=Phase.ABSENT))
    assert isinstance(decision, EndAttempt)
    assert decision.exit.reason is ExitReason.LOST
    assert isinstance(decision.verdict, Retry)


def test_a_start_is_noted_once() -> None:
    running = Observation(phase=Phase.RUNNING, started_at=950.0)
    assert decide(make_run(RunState.STARTING), running, AttemptState.STARTING) == [MarkRunning(started_at=950.0)]
    assert decide(make_run(), running) == []
    assert decide(make_run(), Observation(phase=Phase.STARTING), AttemptState.STARTING) == []


@pytest.mark.parametrize(("grace_s", "asked"), [(3.0, 3.0), (0.0, 0.0), (None, 10.0)])
def test_a_cancelled_run_is_stopped_with_its_grace(grace_s: float | None, asked: float) -> None:
    run = cancelling(make_run(), grace_s)
    assert decide(run, Observation(phase=Phase.RUNNING, started_at=1.0)) == [StopAttempt(grace_s=asked)]


def test_a_cancelled_run_that_was_never_launched_ends_at_once() -> None:
    run = cancelling(make_run(RunState.STARTING))
    [decision] = decide(run, Observation(phase=Phase.ABSENT), AttemptState.STARTING)
    assert isinstance(decision, EndAttempt)
    assert isinstance(decision.verdict, Cancel)
    assert decision.started_at is None


@pytest.mark.parametrize(
    ("exit", "verdict"),
    [
        (DONE, Succeed),
        (LOST, Retry),
        (Exit(reason=ExitReason.EXIT_CODE, exit_code=1), GiveUp),
        (Exit(reason=ExitReason.CANCELLED), Cancel),
        (Exit(reason=ExitReason.TIMEOUT), GiveUp),
    ],
)
def test_how_an_attempt_ended_decides_about_its_run(exit: Exit, verdict: type) -> None:
    [decision] = decide(make_run(), ended(exit))
    assert isinstance(decision.verdict, verdict)
    assert (decision.started_at, decision.ended_at, decision.exit) == (950.0, 990.0, exit)


def test_a_run_that_completes_while_it_is_cancelled_has_succeeded() -> None:
    [decision] = decide(cancelling(make_run()), ended(DONE))
    assert isinstance(decision.verdict, Succeed)


@pytest.mark.parametrize("exit", [LOST, Exit(reason=ExitReason.EXIT_CODE, exit_code=1), Exit(reason=ExitReason.OOM)])
def test_a_run_that_fails_while_it_is_cancelled_is_cancelled(exit: Exit) -> None:
    [decision] = decide(cancelling(make_run(retry={"max": 9})), ended(exit))
    assert isinstance(decision.verdict, Cancel)


def test_no_retry_begins_after_the_time_limit() -> None:
    [decision] = decide(dataclasses.replace(make_run(timeout=101), ran_s=101.0), ended(LOST))
    assert isinstance(decision.verdict, GiveUp)
    assert "time limit" in decision.verdict.why
    [decision] = decide(dataclasses.replace(make_run(timeout=10_000, started_at=1.0), ran_s=101.0), ended(LOST))
    assert isinstance(decision.verdict, Retry)


def test_what_completed_unseen_has_run_all_the_same() -> None:
    seen = Observation(phase=Phase.ENDED, ended_at=990.0, exit=DONE)
    [decision] = decide(make_run(RunState.STARTING), seen, AttemptState.STARTING)
    assert decision.started_at == 990.0


@pytest.mark.parametrize("text", ["a\0b", "bad \udcff byte"])
def test_what_an_exit_says_can_be_written_down(text: str) -> None:
    [decision] = decide(make_run(), ended(Exit(reason=ExitReason.EXIT_CODE, message=text)))
    assert decision.exit.message.encode()
    assert "\0" not in decision.exit.message


def test_a_launch_that_can_never_work_is_final() -> None:
    decision = decide_failed_launch(make_run(retry={"max": 9}), make_attempt(), "no such file", [], now=NOW, jitter=0)
    assert decision.exit == Exit(reason=ExitReason.LAUNCH_FAILED, message="no such file")
    assert isinstance(decision.verdict, GiveUp)


UNSTARTED = Exit(reason=ExitReason.LAUNCH_FAILED, exit_code=127, node_rank=0, message="no folder '/data'")


def test_a_node_that_cannot_start_what_has_run_before_is_left() -> None:
    seen = Observation(phase=Phase.ENDED, ended_at=990.0, exit=UNSTARTED)
    preempted = Ended(exit=Exit(reason=ExitReason.PREEMPTED))
    [decision] = decide_attempt(make_run(), make_attempt(), seen, [preempted], now=NOW, jitter=0.5)
    assert isinstance(decision, EndAttempt)
    assert isinstance(decision.verdict, Retry)
    assert decision.exit == dataclasses.replace(UNSTARTED, node="n", trouble=NODE)
    assert decision.blame == Blame(node="n", first_s=60.0)
    turned_away = Ended(exit=decision.exit, has_run=False)
    earlier = [preempted, *[turned_away] * 3]
    [decision] = decide_attempt(make_run(), make_attempt(), seen, earlier, now=NOW, jitter=0.5)
    assert isinstance(decision, EndAttempt)
    assert isinstance(decision.verdict, GiveUp)
    assert "the limit is 3 retries" in decision.verdict.why


@pytest.mark.parametrize(
    ("earlier", "exit"),
    [
        ([], UNSTARTED),
        ([Ended(exit=LOST, has_run=False)], UNSTARTED),
        ([Ended(exit=LOST)], dataclasses.replace(UNSTARTED, node_rank=None)),
    ],
)
def test_what_never_ran_or_fails_nowhere_in_particular_can_never_work(earlier: list[Ended], exit: Exit) -> None:
    seen = Observation(phase=Phase.ENDED, ended_at=990.0, exit=exit)
    [decision] = decide_attempt(make_run(), make_attempt(), seen, earlier, now=NOW, jitter=0.5)
    assert isinstance(decision, EndAttempt)
    assert isinstance(decision.verdict, GiveUp)
    assert (decision.exit.trouble, decision.blame) == (None, None)


@pytest.mark.parametrize(
    ("exit", "words"),
    [
        (DONE, "completed"),
        (Exit(reason=ExitReason.EXIT_CODE, exit_code=3, rank=0, message="ValueError: x"),
         "exit code 3 on rank 0: ValueError: x"),
        (Exit(reason=ExitReason.SIGNAL, signal=9, rank=1), "signal SIGKILL on rank 1"),
        (Exit(reason=ExitReason.SIGNAL, signal=250), "signal 250"),
        (Exit(reason=ExitReason.OOM), "out of memory"),
    ],
)  # fmt: skip
def test_exits_in_words(exit: Exit, words: str) -> None:
    assert describe_exit(exit) == words


# ---- what is launched ----------------------------------------------------------------------------------------------


def launch(run: RunRecord, inherited: dict[str, str] | None = None) -> Any:
    return render_launch(run, make_attempt(), {"TOKEN": "x"}, engine_type="local", inherited=inherited or {})


def test_a_launch_carries_the_run() -> None:
    made = launch(make_run(params={"lr": 0.1}, nproc=2, grace=4, warm=False, workdir="/tmp"))
    assert (made.run_id, made.attempt_id, made.attempt) == ("r-1", "r-1.1", 1)
    assert (made.argv, made.workers_per_node, made.grace_s, made.warm) == (("python", "t.py"), 2, 4, False)
    assert (made.workdir, made.secrets, made.self_launching) == ("/tmp", {"TOKEN": "x"}, False)
    assert made.env["WINDLASS_PARAMS"] == '{"lr": 0.1}'
    assert (made.env["WINDLASS_SEED"], made.env["WINDLASS_RUN_NAME"]) == ("7", "name")


def test_what_the_server_has_for_itself_is_not_inherited() -> None:
    made = launch(make_run(), {"HOME": "/h", "WINDLASS_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "x", "PATH": "/bin"})
    assert made.host_env == {"HOME": "/h"}
    assert not {"WINDLASS_TOKEN", "AWS_SECRET_ACCESS_KEY", "PATH", "HOME"} & set(made.env)
    assert made.search_path == "/bin"


def test_whose_environment_it_is_stays_apart() -> None:
    """What a node gets of the server's and the submitter's depends on where it is: engines decide that."""
    origin = {"env": {"A": "origin", "B": "origin"}, "search_path": "/s"}
    made = launch(dataclasses.replace(make_run(env={"B": "spec"}), origin=origin), {"HOME": "/h", "PATH": "/bin"})
    assert {name: value for name, value in made.env.items() if not name.startswith("WINDLASS_")} == {"B": "spec"}
    assert (made.origin_env, made.host_env) == ({"A": "origin", "B": "origin"}, {"HOME": "/h"})
    assert made.search_path == "/s"


def test_the_time_limit_is_the_runs_not_the_attempts() -> None:
    assert launch(dataclasses.replace(make_run(timeout=150, started_at=900.0), ran_s=100.0)).timeout_s == 50.0
    assert launch(make_run(timeout=150, started_at=None)).timeout_s == 150.0
    assert launch(dataclasses.replace(make_run(timeout=50), ran_s=100.0)).timeout_s == 1.0
    assert launch(make_run()).timeout_s is None
