"""A node that fails its runs is avoided for a while, and the record says so."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.controller.stage import Stage
from windlass.agent import patterns
from windlass.agent.remedy import NODE
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Node
from windlass.scheduling.aside import load_aside

BROKEN = Exit(
    reason=ExitReason.EXIT_CODE, exit_code=1, rank=1, node_rank=1, trouble=patterns.DEVICE_BROKEN, message="ECC error"
)
GONE = Exit(reason=ExitReason.LOST, node_rank=0, trouble=NODE, message="node a is gone")
LOST = Exit(reason=ExitReason.LOST, node_rank=0, message="its supervisor died")


def begin(stage: Stage, names: str, *, nodes: int = 2) -> str:
    stage.cluster.nodes = tuple(Node(engine="fake", name=name, cpus=4, memory_bytes=10**9) for name in names)
    stage.pass_time(60)
    run_id = stage.submit(resources={"nodes": nodes, "cpus": 4})
    stage.pass_time()
    stage.pass_time()
    return run_id


def end(stage: Stage, run_id: str, attempt: int, exit: Exit) -> None:
    stage.engine.finish(f"{run_id}.{attempt}", exit)
    stage.pass_time()
    stage.pass_time(600)


def where(stage: Stage, run_id: str) -> str:
    return "".join(share.node for share in stage.cluster.attempts[run_id].launch.placement.shares)


def test_a_broken_node_is_set_aside_and_the_others_keep_their_ranks(stage: Stage) -> None:
    run_id = begin(stage, "abc")
    assert where(stage, f"{run_id}.1") == "ab"
    end(stage, run_id, 1, BROKEN)
    assert where(stage, f"{run_id}.2") == "ac"
    events = {event.kind: event for event in stage.service.events(run_id, after=0).events}
    assert events["set_aside"].message == "node b is set aside for 30m00s"
    assert events["set_aside"].data["node"] == "b"
    with stage.db.read() as tx:
        aside = load_aside(tx, now=stage.clock.now())["fake", "b"]
    assert aside.reason == "exit code 1 on rank 1: ECC error"
    assert aside.run_id == run_id


def test_a_lost_supervisor_is_no_reason_to_leave_the_node_but_two_are(stage: Stage) -> None:
    run_id = begin(stage, "abc")
    end(stage, run_id, 1, LOST)
    assert where(stage, f"{run_id}.2") == "ab"
    assert "set_aside" not in stage.kinds(run_id)
    end(stage, run_id, 2, LOST)
    assert where(stage, f"{run_id}.3") == "cb"
    assert "set_aside" in stage.kinds(run_id)


def test_a_node_that_answers_again_is_used_if_there_is_no_other(stage: Stage) -> None:
    run_id = begin(stage, "ab")
    end(stage, run_id, 1, GONE)
    assert where(stage, f"{run_id}.2") == "ab"


def test_also_a_run_that_is_given_up_warns_the_others(stage: Stage) -> None:
    stage.cluster.nodes = tuple(Node(engine="fake", name=name, cpus=4, memory_bytes=10**9) for name in "ab")
    stage.pass_time(60)
    run_id = stage.submit(resources={"cpus": 4}, retry={"max": 0})
    stage.pass_time()
    stage.pass_time()
    end(stage, run_id, 1, replace(BROKEN, node_rank=0))
    assert stage.state(run_id) == "failed"
    other = stage.submit(resources={"cpus": 4})
    stage.pass_time()
    assert where(stage, f"{other}.1") == "b"


def test_the_time_over_it_is_used_as_before(stage: Stage) -> None:
    run_id = begin(stage, "ab", nodes=1)
    end(stage, run_id, 1, replace(BROKEN, node_rank=0))
    assert where(stage, f"{run_id}.2") == "b"
    end(stage, run_id, 2, Exit(reason=ExitReason.COMPLETED, exit_code=0))
    stage.pass_time(3600)
    again = stage.submit(resources={"cpus": 4})
    stage.pass_time()
    assert where(stage, f"{again}.1") == "a"


def test_a_node_that_cannot_start_a_run_does_not_end_what_ran_without_it(stage: Stage) -> None:
    run_id = begin(stage, "abcd")
    end(stage, run_id, 1, BROKEN)
    assert where(stage, f"{run_id}.2") == "ac"
    stage.engine.finish(f"{run_id}.2", Exit(reason=ExitReason.LAUNCH_FAILED, node_rank=1, message="no folder '/data'"))
    for _ in range(20):
        stage.pass_time()
    assert where(stage, f"{run_id}.3") == "ad"
    assert stage.state(run_id) == "running"
