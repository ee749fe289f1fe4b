from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.scheduling.core.clusters import node, policy, running, share, waiting
from tests.unit.scheduling.core.strategies import HEALTH, WORLDS, draw_arrival
from tests.unit.scheduling.core.worlds import World
from windlass.scheduling.core.board import Board
from windlass.scheduling.core.decide import decide


@settings(max_examples=100, deadline=None)
@given(world=WORLDS, data=st.data())
def test_step_by_step_it_decides_what_is_decided_from_scratch(world: World, data: st.DataObject) -> None:
    board = Board(world.nodes, world.projects)
    for step in range(data.draw(st.integers(1, 6))):
        for at in range(data.draw(st.integers(0, 4))):
            world.submit(*draw_arrival(data, f"r{step}{at}"))
        if data.draw(st.integers(0, 5)) == 0:
            world.nodes[0] = replace(world.nodes[0], health=data.draw(HEALTH))
            board.set_nodes(world.nodes)
        world.step(data.draw(st.sampled_from([0.0, 50.0, 1000.0])))
        _tell(board, world)
        board.reserved = world.reserved
        assert board.decide(world.policy, world.now) == decide(world.snapshot, world.policy, world.now)


def _tell(board: Board, world: World) -> None:
    """What has changed since."""
    known = board.snapshot
    for waits in world.waiting.values():
        board.put_waiting(waits)
    for runs in world.running.values():
        board.put_running(runs)
    for gone in {run.run_id for run in (*known.waiting, *known.running)} - world.left_s.keys():
        board.remove(gone)


def test_what_ends_makes_room() -> None:
    board = Board([node("a", gpus=1)])
    board.put_running(running("r", share("a", gpus=1)))
    board.put_waiting(waiting("w"))
    assert board.decide(policy(), 0).starts == ()
    board.remove("r")
    assert [start.run_id for start in board.decide(policy(), 0).starts] == ["w"]
    assert [start.run_id for start in board.decide(policy(), 0).starts] == ["w"]  # deciding changes nothing
