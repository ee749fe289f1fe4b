"""What always holds, over random clusters, queues and sequences of events."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.scheduling.core.clusters import GB, node, running, share, snapshot, waiting
from tests.unit.scheduling.core.strategies import HEALTH, WORLDS, draw_arrival
from tests.unit.scheduling.core.worlds import World
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.preempt import lost_by_stopping
from windlass.scheduling.core.types import NodeState, Policy, Waiting, Want

STEPS = st.sampled_from([0.0, 10.0, 100.0, 1000.0])


@settings(max_examples=200, deadline=None)
@given(world=WORLDS, data=st.data())
def test_whatever_happens_nothing_is_given_twice_and_nobody_is_wronged(world: World, data: st.DataObject) -> None:
    """`World.step` checks each decision."""
    count = 0
    for _ in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(0, 5))):
            count += 1
            world.submit(*draw_arrival(data, f"r{count:02}"))
        if data.draw(st.integers(0, 5)) == 0:
            at = data.draw(st.integers(0, len(world.nodes) - 1))
            world.nodes[at] = replace(world.nodes[at], health=data.draw(HEALTH))
        world.step(data.draw(STEPS))


@settings(max_examples=100, deadline=None)
@given(world=WORLDS, data=st.data(), seed=st.integers(0, 2**16))
def test_the_same_snapshot_gives_the_same_decisions_in_whatever_order_it_is_written(
    world: World, data: st.DataObject, seed: int
) -> None:
    for at in range(data.draw(st.integers(1, 8))):
        world.submit(*draw_arrival(data, f"r{at:02}"))
    world.step(0.0)
    for at in range(data.draw(st.integers(1, 8))):
        world.submit(*draw_arrival(data, f"s{at:02}"))
    world.now += 400.0
    found = world.snapshot
    chance = random.Random(seed)
    shuffled = replace(
        found,
        nodes=tuple(chance.sample(found.nodes, len(found.nodes))),
        running=tuple(chance.sample(found.running, len(found.running))),
        waiting=tuple(chance.sample(found.waiting, len(found.waiting))),
        projects=tuple(chance.sample(found.projects, len(found.projects))),
    )
    assert decide(found, world.policy, world.now) == decide(found, world.policy, world.now)
    assert decide(shuffled, world.policy, world.now) == decide(found, world.policy, world.now)


@settings(max_examples=80, deadline=None)
@given(world=WORLDS, data=st.data())
def test_everything_that_can_run_ends_in_bounded_time(world: World, data: st.DataObject) -> None:
    """Without further arrivals: no two stop each other for ever, nobody is passed over for ever."""
    world.policy = replace(world.policy, ageing_s=1000.0, starving_s=3000.0, user_limit={})
    world.projects = [replace(project, limit={}) for project in world.projects]
    work_s = 0.0
    for at in range(data.draw(st.integers(1, 12))):
        run, seconds = draw_arrival(data, f"r{at:02}")
        world.submit(run, seconds)
        work_s += seconds
    while world.now < 4 * work_s + 10_000.0 and world.running.keys() | world.waiting.keys():
        world.step(50.0 if world.running else 500.0)  # where nothing runs only waiting grows
    idle = World(nodes=world.nodes, policy=world.policy, projects=world.projects)
    for run in world.waiting.values():
        idle.waiting = {run.run_id: replace(run, before=None)}
        assert not decide(idle.snapshot, idle.policy, 0.0).starts, f"{run.run_id} could run, and waits for ever"
    assert not world.running


def test_a_large_gang_starts_in_bounded_time_beside_a_stream_of_small_ones_that_matter_more() -> None:
    """The small ones alone keep half of the cluster busy, for ever."""
    cluster = [NodeState(engine="x", name=f"n{at}", cpus=8, memory_bytes=GB, gpus=4) for at in range(4)]
    world = World(nodes=cluster, policy=Policy(starving_s=5000.0, ageing_s=2000.0, preempts=False))
    small = (Want(gpus=1),)
    world.submit(Waiting(run_id="gang", project="a", wants=(Want(gpus=4, nodes=4),)), 100.0)
    for at in range(400):
        world.submit(Waiting(run_id=f"s{at:03}", project="b", wants=small, priority=9), 400.0)
        world.step(50.0)
        if "gang" in world.started_first:
            break
    assert 400 < world.started_first["gang"] <= 5000 + 400 + 100


def test_preemption_is_bounded() -> None:
    """Two long runs of one project that fit one at a time: they take turns, less and less often."""
    world = World(nodes=[NodeState(engine="x", name="n", cpus=8, memory_bytes=GB, gpus=4)], policy=Policy())
    for run_id in ("r1", "r2"):
        world.submit(Waiting(run_id=run_id, project="a", wants=(Want(gpus=4),)), 200_000.0)
    while world.running or world.waiting:
        world.step(100.0)
    assert 2 <= world.preemptions <= 20


@settings(max_examples=100, deadline=None)
@given(
    held=st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1.0, 7.0, 30.0, 31.0, 200.0])), min_size=1, max_size=6),
    wanted=st.integers(1, 8),
)
def test_on_one_node_no_other_set_of_victims_loses_less(held: list[tuple[int, float]], wanted: int) -> None:
    victims, first = [], 0
    for at, (gpus, unsaved_s) in enumerate(held):
        if first + gpus <= 8:
            saved_at = 1000.0 - unsaved_s
            victims.append(running(f"r{at}", share("n", gpus=gpus, first=first), saved_at=saved_at))
            first += gpus
    claim = waiting("w", Want(gpus=wanted), priority=1)
    found = decide(snapshot([claim], [node("n")], running=victims), Policy(), 1000.0)
    free = 8 - first
    losses = [
        sum(lost_by_stopping(run, 1000.0) for run in some)
        for count in range(len(victims) + 1)
        for some in combinations(victims, count)
        if free + sum(run.want.gpus for run in some) >= wanted
    ]
    assert sum(stop.lost for stop in found.stops) == pytest.approx(min(losses))
