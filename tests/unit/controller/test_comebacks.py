"""That a run has caught up after a failed attempt is on record once, with what it cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.controller.stage import Stage
from windlass.controller.comebacks import decide_comeback, progress_at_end
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import NodeShare, Placement
from windlass.engines.contract import Observation, Phase
from windlass.runs.records import AttemptRecord, ended_attempt
from windlass.runs.retry import Ended
from windlass.runs.types import AttemptState
from windlass.tracking.points import MetricPoint, ProgressMark, Teller
from windlass.tracking.store import ingest
from windlass.wire.runs import EventView

LOST = Exit(reason=ExitReason.LOST, message="its supervisor died", node="a", node_rank=0)


def progress(step: int, at: float, *, steps: int = 1, restored: tuple[int, float, float] | None = None) -> Any:
    step_at, restored_at, load_s = restored or (None, None, None)
    return {
        "progress": {
            "step": step, "at": at, "steps": steps,
            "restored_step": step_at, "restored_at": restored_at, "load_s": load_s,
        }
    }  # fmt: skip


def attempt(number: int, nodes: str = "ab", **values: Any) -> AttemptRecord:
    shares = tuple(NodeShare(node=name, cpus=1, memory_bytes=0) for name in nodes)
    known: dict[str, Any] = {
        "id": f"r.{number}", "run_id": "r", "number": number, "state": AttemptState.RUNNING, "engine": "local",
        "placement": Placement(engine="local", shares=shares), "created_at": 0.0, "started_at": None, "ended_at": None,
        "released_at": None, "exit": None, "log_dirs": (), "environment_digest": None, "usage": None,
    }  # fmt: skip
    return AttemptRecord(**{**known, **values})


DEAD = attempt(1, exit=LOST, ended_at=101.0, usage=progress(50, 100.0, steps=51))
NEXT = attempt(2, created_at=103.0)


def seen(usage: Any) -> Observation:
    return Observation(phase=Phase.RUNNING, started_at=103.5, usage=usage)


def test_steps_lost_and_the_time_of_each_part() -> None:
    # It went on from step 40 at 110, and does one step a second: 51 is finished at 121.
    told = progress(60, 130.0, steps=20, restored=(40, 110.0, 4.0))
    found = decide_comeback(DEAD, NEXT, seen(told))
    assert found is not None
    wanted = {
        "level": 2, "attempt": 2, "reason": "lost", "node": "a", "step": 50, "restored_step": 40, "steps_lost": 10,
        "detect_s": 1.0, "decide_s": 2.0, "respawn_s": 3.0, "load_s": 4.0, "replay_s": 11.0,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted


def test_one_that_began_anew_has_lost_all_steps() -> None:
    found = decide_comeback(DEAD, NEXT, seen(progress(51, 160.0, steps=52)))
    assert found is not None
    assert (found["steps_lost"], found["load_s"], found["replay_s"]) == (51, None, 56.5)


@pytest.mark.parametrize(
    "usage", [None, {}, {"progress": None}, progress(50, 130.0), progress(-1, 0.0, steps=0, restored=(60, 110.0, 1.0))]
)
def test_nothing_is_said_before_it_is_beyond(usage: Any) -> None:
    assert decide_comeback(DEAD, NEXT, seen(usage)) is None


@pytest.mark.parametrize("usage", [None, {}, {"progress": {"step": "7"}}])
def test_nothing_is_said_where_the_dead_told_no_step(usage: Any) -> None:
    assert decide_comeback(replace(DEAD, usage=usage), NEXT, seen(progress(60, 130.0))) is None


@pytest.mark.parametrize(("nodes", "level"), [("ab", 2), ("ba", 2), ("ac", 3), ("a", 4), ("abc", 4)])
def test_the_level_follows_from_the_nodes(nodes: str, level: int) -> None:
    found = decide_comeback(DEAD, attempt(2, nodes, created_at=103.0), seen(progress(60, 130.0, steps=20)))
    assert found is not None
    assert found["level"] == level


def lose_first(stage: Stage, run_id: str) -> None:
    """Its first attempt; the second one begins."""
    stage.engine.finish(f"{run_id}.1", LOST)
    stage.pass_time()
    stage.pass_time(60)
    stage.pass_time()


def comeback(stage: Stage, run_id: str) -> EventView:
    [event] = [event for event in stage.service.events(run_id, after=0).events if event.kind == "recovered"]
    return event


def test_it_is_recorded_once(stage: Stage) -> None:
    run_id = stage.submit()
    stage.pass_time()
    stage.pass_time()
    stage.engine.tell(f"{run_id}.1", progress(50, stage.clock.now(), steps=51))
    stage.pass_time()
    stage.pass_time()
    lose_first(stage, run_id)
    stage.engine.tell(f"{run_id}.2", progress(45, stage.clock.now(), steps=5, restored=(40, stage.clock.now(), 1.0)))
    stage.pass_time()
    assert "recovered" not in stage.kinds(run_id)
    stage.engine.tell(f"{run_id}.2", progress(55, stage.clock.now(), steps=15, restored=(40, stage.clock.now(), 1.0)))
    stage.pass_time()
    for _ in range(3):
        stage.pass_time(5)
    event = comeback(stage, run_id)
    assert event.attempt == 2
    assert event.data["steps_lost"] == 10
    assert event.message.startswith("recovered by attempt 2 on the same nodes in ")
    assert "its supervisor died; 10 steps lost" in event.message


def test_what_was_logged_tells_where_a_node_died_that_said_nothing(stage: Stage) -> None:
    run_id = stage.submit()
    stage.pass_time()
    stage.pass_time()
    with stage.db.write() as tx:
        point = MetricPoint(at=stage.clock.now(), step=50, values={"loss": 1.0})
        ingest(tx, run_id, "rank-0", [point], position=0, next_position=1)
    lose_first(stage, run_id)
    stage.engine.tell(f"{run_id}.2", progress(55, stage.clock.now(), steps=15, restored=(40, stage.clock.now(), 1.0)))
    stage.pass_time()
    event = comeback(stage, run_id)
    assert (event.data["step"], event.data["steps_lost"]) == (50, 10)


LOGGED = ProgressMark(step=57, total=None, at=100.5, first_step=1, first_at=60.0)


def test_the_later_of_what_was_told_and_what_was_logged_counts() -> None:
    found = progress_at_end(DEAD, LOGGED)
    assert found is not None
    assert found["progress"] == {**DEAD.usage["progress"], "step": 57, "at": 100.5, "steps": 56}  # type: ignore[index]
    assert progress_at_end(DEAD, replace(LOGGED, step=50)) is None
    assert progress_at_end(DEAD, None) is None
    assert progress_at_end(DEAD, replace(LOGGED, teller=Teller.JOB)) == found
    assert progress_at_end(DEAD, replace(LOGGED, teller=Teller.MLFLOW)) is None  # it may count something else
    earlier_attempt = replace(LOGGED, at=NEXT.created_at - 1)
    assert progress_at_end(NEXT, earlier_attempt) is None


@pytest.mark.parametrize(("steps_each", "state"), [(1_000, "running"), (0, "failed")])
def test_a_run_that_comes_further_each_time_is_never_given_up(stage: Stage, steps_each: int, state: str) -> None:
    run_id = stage.submit()
    for number in range(1, 7):
        stage.pass_time(600)
        stage.pass_time()
        if stage.state(run_id) == "failed":
            break
        stage.engine.tell(f"{run_id}.{number}", progress(50 + steps_each * number, stage.clock.now(), steps=51))
        stage.pass_time()
        stage.pass_time()
        stage.engine.finish(f"{run_id}.{number}", LOST)
        stage.pass_time()
    stage.pass_time(600)
    stage.pass_time()
    assert (stage.state(run_id), number) == (state, 6 if steps_each else 5)


def test_what_came_back_was_further_than_the_one_before() -> None:
    """Whatever its ranks have told last: some start again in place, and die before they are as far as they were."""
    before = Ended(exit=LOST, step=50)
    back = replace(NEXT, started_at=104.0, recovered_at=120.0, usage=progress(10, 150.0))
    assert ended_attempt(back, LOST, before) == Ended(exit=LOST, step=51)
    assert ended_attempt(back, LOST, before, progress(70, 151.0)).step == 70
    assert ended_attempt(replace(back, recovered_at=None), LOST, before).step == 10


@pytest.mark.parametrize("usage", [None, {}, {"progress": 1}, {"progress": {"step": "7", "steps": 1}}])
def test_who_tells_no_steps_has_come_nowhere(usage: Any) -> None:
    assert ended_attempt(replace(NEXT, usage=usage), LOST, None, usage).step is None
