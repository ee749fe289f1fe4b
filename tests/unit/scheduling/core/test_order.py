from __future__ import annotations

from zlib import crc32

import pytest

from tests.unit.scheduling.core.clusters import node, policy, running, share, snapshot, started, waiting, want
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.fairness import accrue
from windlass.scheduling.core.ranking import rank_queue
from windlass.scheduling.core.types import Cause, Project, Running, order_of_arrival

DAY = 24 * 3600.0
NOW = 10 * DAY


def test_the_oldest_comes_first_once_it_has_waited_too_long() -> None:
    runs = [waiting("new", want(gpus=8), queued_at=NOW), waiting("old", want(gpus=8), queued_at=NOW - DAY, served=1e9)]
    assert started(snapshot(runs, [node("a")]), now=NOW) == ["old"]
    assert started(snapshot(runs, [node("a")]), now=NOW, ageing_s=2 * DAY) == ["new"]


def test_the_old_come_first_only_while_they_hold_little() -> None:
    old = running("o", share("b", gpus=8), started_at=NOW - DAY, queued_at=NOW - 3 * DAY, preemptible=False)
    runs = [waiting("new", want(gpus=8), queued_at=NOW), waiting("old", want(gpus=8), queued_at=NOW - DAY, served=1e9)]
    assert started(snapshot(runs, [node("a"), node("b")], running=[old]), now=NOW) == ["new"]


def test_one_that_starves_comes_before_every_priority_and_starts_once() -> None:
    runs = [waiting("high", want(gpus=4), priority=9), waiting("old", want(gpus=8), queued_at=NOW - 4 * DAY)]
    runs[0] = waiting("high", want(gpus=4), priority=9, queued_at=NOW)
    assert started(snapshot(runs, [node("a")]), now=NOW) == ["old"]
    assert started(snapshot(runs, [node("a"), node("b"), node("c")]), now=NOW) == ["old", "high"]


def test_room_is_kept_for_one_that_starves_against_every_priority() -> None:
    held = [running("r", share("b", gpus=8), ends_at=NOW + 100, preemptible=False)]
    runs = [
        waiting("high", want(gpus=4), priority=9, queued_at=NOW),
        waiting("old", want(gpus=8, nodes=2), queued_at=NOW - 4 * DAY),
    ]
    found = decide(snapshot(runs, [node("a"), node("b")], running=held), policy(), NOW)
    assert found.starts == ()
    assert found.reservations[0].run_id == "old"


def test_a_deadline_that_is_near_goes_before_rank() -> None:
    runs = [
        waiting("fresh", want(gpus=8)),
        waiting("due", want(gpus=8), served=1e9, deadline=NOW + 5000, longest_s=3000),
        waiting("missed", want(gpus=8), served=1e9, deadline=NOW - 1),
    ]
    for run_id, at in (("due", NOW), ("fresh", NOW - 5000), ("fresh", NOW + 2500)):
        found = decide(snapshot(runs, [node("a")]), policy(ageing_s=1e9, starving_s=1e9), at)
        assert [start.run_id for start in found.starts] == [run_id]


def test_another_rank_may_be_given() -> None:
    runs = [waiting("b", want(gpus=8), submitted_at=2), waiting("a", want(gpus=8), submitted_at=1, served=100)]
    assert started(snapshot(runs, [node("n")]), rank=order_of_arrival) == ["a"]


def test_users_have_limits_too() -> None:
    runs = [waiting(f"{user}{at}", user=user) for user in "uv" for at in range(3)]
    assert started(snapshot(runs, [node("a")]), user_limit={"gpu": 2}) == ["u0", "u1", "v0", "v1"]
    assert started(snapshot(runs, [node("a")]), user_limit={"runs": 1}) == ["u0", "v0"]


def test_three_projects_under_overload_get_their_shares() -> None:
    """Runs of one to three hours on 60 GPUs, a pass every ten minutes; each project has more than it can run."""
    weights = {"a": 3.0, "b": 2.0, "c": 1.0}
    nodes = [node(f"n{at}", gpus=10, cpus=100) for at in range(6)]
    usage = dict.fromkeys(weights, 0.0)
    total = dict.fromkeys(weights, 0.0)
    live: list[Running] = []
    for step in range(400):
        now = step * 600.0
        live = [run for run in live if run.started_at + 3600 * (1 + crc32(run.run_id.encode()) % 3) > now]
        runs = [
            waiting(f"{name}{step:04}-{at}", want(gpus=1 + at % 4), project=name)
            for name in weights
            for at in range(40)
        ]
        projects = [Project(name=name, weight=weights[name], usage=usage[name], usage_at=now) for name in weights]
        found = decide(snapshot(runs, nodes, running=live, projects=projects), policy(index_margin=None), now)
        live += [
            running(start.run_id, *start.placement.shares, project=start.run_id[0], wants=start.want, started_at=now)
            for start in found.starts
        ]
        for name in weights:
            gpus = sum(len(run.placement.shares[0].gpu_indices) for run in live if run.project == name)
            usage[name] = accrue(usage[name], gpus / 60, 600, policy().half_life_s)
            total[name] += gpus
    for name, weight in weights.items():
        assert total[name] / sum(total.values()) == pytest.approx(weight / 6, rel=0.02)


def test_the_queue_is_ranked_as_if_each_started_when_its_turn_comes() -> None:
    projects = [Project(name="a", weight=2), Project(name="b"), Project(name="c", quota={"gpu": 1})]
    runs = [waiting(f"{name}{at}", project=name, queued_at=at) for name in "ab" for at in range(4)]
    runs += [waiting(f"c{at}", project="c", queued_at=at) for at in range(2)]
    runs += [waiting("high", project="b", priority=1), waiting("old", project="b", queued_at=-4 * DAY)]
    ranked = rank_queue(snapshot(runs, [node("n")], projects=projects), policy(), 0)
    assert ranked == ("old", "c0", "high", "a0", "a1", "a2", "c1", "a3", "b0", "b1", "b2", "b3")


def test_the_first_that_start_are_the_first_in_the_queue() -> None:
    projects = [Project(name=name, weight=weight) for weight, name in enumerate("abc", 1)]
    runs = [waiting(f"{name}{at}", project=name) for name in "abc" for at in range(9)]
    found = snapshot(runs, [node("n")], projects=projects)
    assert tuple(started(found)) == rank_queue(found, policy(), 0)[:8]


def test_one_that_starves_but_is_held_back_by_its_own_limit_leaves_the_turn_to_the_next() -> None:
    runs = [
        waiting("limited", want(gpus=8), queued_at=NOW - 5 * DAY, project="small"),
        waiting("old", want(gpus=8), queued_at=NOW - 4 * DAY),
        waiting("high", want(gpus=8), queued_at=NOW, priority=9),
    ]
    projects = [Project(name="small", limit={"gpu": 4})]
    assert started(snapshot(runs, [node("a")], projects=projects), now=NOW) == ["old"]


def test_one_that_starves_still_takes_back_what_its_quota_guarantees() -> None:
    held = [running("borrower", share("a", gpus=8), project="q", started_at=NOW - DAY, saves_on_notice=True)]
    runs = [waiting("old", want(gpus=8), queued_at=NOW - 4 * DAY)]
    projects = [Project(name="p", quota={"gpu": 8})]
    found = decide(snapshot(runs, [node("a")], running=held, projects=projects), policy(), NOW)
    assert [(stop.run_id, stop.by, stop.cause) for stop in found.stops] == [("borrower", "old", Cause.RECLAIM)]
