"""Elastic runs: going on with fewer nodes, and when one is stopped to go on with more."""

from __future__ import annotations

from sqlalchemy import update

from tests.unit.controller.stage import Stage
from windlass.checkpoints.store import record_notes
from windlass.controller.lease import leases
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Node
from windlass.tracking.saves import read_note

ELASTIC = {"min_nodes": 1, "max_nodes": 4, "grow_every": 60}


def nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(engine="fake", name=f"n{number}", cpus=1, memory_bytes=10**9) for number in range(count))


def save(stage: Stage, run_id: str) -> None:
    note = read_note(
        {"folder": "/ckpt/step-5", "tier": "folder", "created_at": stage.clock.now(), "size_bytes": 1, "files": 1,
         "world_size": 1, "plan": "", "format": "dcp", "reason": "interval", "metrics": {}},
        at=stage.clock.now(), step=5,
    )  # fmt: skip
    with stage.db.write() as tx:
        record_notes(tx, run_id, f"spool:{run_id}.1:0", [note])


def nodes_of(stage: Stage, run_id: str) -> int:
    return len(stage.service.attempts(run_id).attempts[-1].nodes)


def started(stage: Stage, count: int = 4, **spec: object) -> str:
    stage.cluster.nodes = nodes(count)
    stage.pass_time(60)
    run_id = stage.submit(**{"elastic": ELASTIC, **spec})
    stage.pass_time()
    stage.pass_time()
    assert stage.state(run_id) == "running"
    return run_id


def test_a_lost_node_costs_a_node(stage: Stage) -> None:
    run_id = started(stage)
    assert nodes_of(stage, run_id) == 4
    stage.cluster.nodes = nodes(2)
    stage.engine.finish(f"{run_id}.1", Exit(reason=ExitReason.LOST, message="node n3 is gone"))
    stage.pass_time()
    stage.pass_time(10)
    stage.pass_time()
    assert (stage.state(run_id), nodes_of(stage, run_id)) == ("running", 2)
    assert "it is on 2 of up to 4 nodes; it grows when more have been free" in stage.service.why(run_id).details[0]


def test_it_begins_with_what_resources_say_and_goes_on_with_fewer(stage: Stage) -> None:
    stage.cluster.nodes = nodes(1)
    stage.pass_time(60)
    stage.cluster.nodes = nodes(3)
    stage.pass_time(60)
    run_id = stage.submit(elastic=ELASTIC, resources={"nodes": 2})
    other = stage.submit(resources={"nodes": 2})
    stage.pass_time()
    assert (nodes_of(stage, run_id), stage.state(other)) == (3, "queued")


def test_it_grows_when_nodes_are_back(stage: Stage) -> None:
    run_id = started(stage, 2)
    save(stage, run_id)
    stage.cluster.nodes = nodes(4)
    for _ in range(100):
        stage.pass_time(1)
        if nodes_of(stage, run_id) == 4:
            break
    stage.pass_time()
    assert (stage.state(run_id), nodes_of(stage, run_id)) == ("running", 4)
    first, second = stage.service.attempts(run_id).attempts
    assert first.exit is not None
    assert first.exit.reason == "preempted"
    assert first.ended_at is not None
    assert first.started_at is not None
    assert 60 <= first.ended_at - first.started_at <= 100
    assert second.created_at - first.ended_at <= 1  # no pause between them
    messages = [event.message for event in stage.service.events(run_id, after=0).events]
    assert "it grows from 2 to 4 nodes; attempt 1 is stopped with 10 s of grace" in messages
    for _ in range(30):
        stage.pass_time(5)
    assert len(stage.service.attempts(run_id).attempts) == 2  # it has all that it wants


def test_it_does_not_grow_without_a_checkpoint_nor_when_it_is_told_not_to(stage: Stage) -> None:
    unsaved = started(stage, 2)
    stage.cluster.nodes = nodes(4)
    for _ in range(30):
        stage.pass_time(5)
    assert nodes_of(stage, unsaved) == 2
    stage.service.cancel(unsaved, grace_s=0)
    stage.pass_time()
    settled = started(stage, 2, elastic={**ELASTIC, "grow_every": None})
    save(stage, settled)
    stage.cluster.nodes = nodes(4)
    for _ in range(30):
        stage.pass_time(5)
    assert nodes_of(stage, settled) == 2
    assert "takes more when it is started again" in stage.service.why(settled).details[0]


def test_a_run_that_is_cancelled_meanwhile_is_cancelled(stage: Stage) -> None:
    run_id = started(stage, 2, command="stubborn", grace="1h")
    save(stage, run_id)
    stage.cluster.nodes = nodes(4)
    for _ in range(100):
        stage.pass_time(1)
    assert stage.kinds(run_id).count("preempting") == 1
    stage.service.cancel(run_id, grace_s=0)
    for _ in range(3):
        stage.pass_time(1)
    assert stage.state(run_id) == "cancelled"


def test_room_that_flaps_is_not_worth_a_restart(stage: Stage) -> None:
    run_id = started(stage, 2)
    save(stage, run_id)
    for number in range(60):
        stage.cluster.nodes = nodes(4 if number % 3 else 2)  # ten seconds of every fifteen
        stage.pass_time(5)
    assert len(stage.service.attempts(run_id).attempts) == 1


def test_another_controller_goes_on_with_it(stage: Stage) -> None:
    """One dies after it gave the warning: the next knows nothing of it, and the run grows all the same."""
    run_id = started(stage, 2, command="stubborn", grace="1h")
    save(stage, run_id)
    stage.cluster.nodes = nodes(4)
    for _ in range(30):
        stage.pass_time(5)
    assert stage.kinds(run_id).count("preempting") == 1
    with stage.db.write() as tx:
        tx.execute(update(leases).values(pid_start=0))
    stage.controller = stage.new_controller()
    assert stage.controller.activate()
    stage.engine.finish(f"{run_id}.1", Exit(reason=ExitReason.PREEMPTED, message="preempted on request"))
    for _ in range(5):
        stage.pass_time(5)
    assert (stage.state(run_id), nodes_of(stage, run_id)) == ("running", 4)
