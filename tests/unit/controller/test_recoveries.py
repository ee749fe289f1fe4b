"""Recoveries within an attempt become events of the run, each once, whoever looks and however often."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller.stage import Stage
from windlass.controller.recoveries import describe_recovery
from windlass.core.exits import Exit, ExitReason

KILLED: dict[str, Any] = {"message": "rank 1 was killed by SIGKILL", "rank": 1, "step": 40, "steps_lost": 1}
TIMES = {"detect_s": 0.0, "decide_s": 0.0, "respawn_s": 0.31, "load_s": 0.12, "replay_s": 0.4}


def recovered(stage: Stage, run_id: str) -> list[int]:
    events = stage.service.events(run_id, after=0).events
    return [event.data["generation"] for event in events if event.kind == "recovered"]


def test_each_is_told_once_also_by_the_next_controller(stage: Stage) -> None:
    run_id = stage.submit()
    for _ in range(2):
        stage.pass_time()
    attempt = f"{run_id}.1"
    stage.engine.recover(attempt, **KILLED, **TIMES)
    for _ in range(3):
        stage.pass_time()
    assert recovered(stage, run_id) == [1]

    stage.engine.recover(attempt, **KILLED)
    stage.engine.recover(attempt, **KILLED)
    stage.controller = stage.new_controller()  # the first one is silent from now on
    stage.controller.activate()
    stage.clock.advance(60)
    assert stage.controller.activate()
    for _ in range(3):
        stage.pass_time()
    assert recovered(stage, run_id) == [1, 2, 3]
    assert stage.state(run_id) == "running"


def test_what_came_just_before_the_end_is_told_before_it(stage: Stage) -> None:
    run_id = stage.submit()
    for _ in range(2):
        stage.pass_time()
    stage.engine.recover(f"{run_id}.1", **KILLED, message2="\x00 is not storable")
    stage.engine.finish(f"{run_id}.1", Exit(reason=ExitReason.COMPLETED))
    for _ in range(2):
        stage.pass_time()
    assert stage.kinds(run_id)[-3:] == ["recovered", "attempt_ended", "succeeded"]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (
            {**KILLED, **TIMES},
            "recovered in place in 0.83 s: rank 1 was killed by SIGKILL; 1 step lost "
            "(detect 0.00 s, decide 0.00 s, respawn 0.31 s, load 0.12 s, replay 0.40 s)",
        ),
        (
            {**KILLED, "respawn_s": 0.5},
            "started again in place, to no avail: rank 1 was killed by SIGKILL; 1 step lost (respawn 0.50 s)",
        ),
        ({"reason": "signal", "step": None, "respawn_s": 0.1}, "started again in place: signal (respawn 0.10 s)"),
        ({"steps_lost": "many", "load_s": "long"}, "started again in place: a rank failed"),
    ],
)  # fmt: skip
def test_in_words(entry: dict[str, Any], text: str) -> None:
    assert describe_recovery(entry) == text
