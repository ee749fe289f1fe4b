"""Replays through the scheduler: what comes out is what must, and nothing is lost or made up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from windlass.core.errors import InvalidInput
from windlass.simulation.cluster import Cluster, NodeGroup, ProjectShare, uniform_cluster
from windlass.simulation.comparison import try_policy
from windlass.simulation.figures import figures_of, jain
from windlass.simulation.policies import POLICIES, find_policy
from windlass.simulation.reference import clairvoyant, first_come
from windlass.simulation.replay import Conditions, Replayed, _Shapes, replay
from windlass.simulation.trace import Job, Trace, make_trace, synthetic_trace

AT_ONCE = Conditions(restart_s=60, pass_s=0)


def jobs(*rows: tuple[float, float, int]) -> Trace:
    return make_trace(Job(name=f"j{n}", at=at, seconds=s, gpus=g) for n, (at, s, g) in enumerate(rows))


def ends(replayed: Replayed) -> list[float | None]:
    return [story.ended_at for story in replayed.stories]


def test_what_fits_runs_at_once() -> None:
    found = replay(jobs((0, 100, 4), (10, 50, 4)), uniform_cluster(8), POLICIES["windlass"], AT_ONCE)
    assert ends(found) == [100, 60]


def test_strict_order_of_arrival_waits_behind_who_does_not_fit() -> None:
    trace = jobs((0, 100, 4), (1, 100, 8), (2, 10, 1))
    strict = replay(trace, uniform_cluster(8), POLICIES["fifo"], AT_ONCE)
    assert ends(strict) == [100, 200, 210] == first_come(trace, 8, backfill=False)
    assert first_come(trace, 8, backfill=True) == [100, 200, 12]


def test_a_short_run_displaces_a_long_one_that_pays_for_its_restart() -> None:
    trace = jobs((0, 100_000, 8), (40_000, 100, 8))
    found = replay(trace, uniform_cluster(8), POLICIES["windlass"], AT_ONCE)
    assert ends(found) == [100_000 + 100 + 60, 40_100]
    long = found.stories[0]
    assert (long.preemptions, long.lost_gpu_s) == (1, 60 * 8)


def test_the_clairvoyant_order_is_the_shortest_remaining_first() -> None:
    assert clairvoyant(jobs((0, 100, 8), (50, 40, 8), (60, 1000, 8)), 8) == pytest.approx([140, 90, 1140])


@pytest.mark.parametrize("name", POLICIES)
def test_every_job_ends_and_the_gpus_suffice(name: str) -> None:
    trace = synthetic_trace(jobs=150, span_s=3 * 86400.0, seed=3)
    cluster = uniform_cluster(trace.gpus_for(1.1))
    found = replay(trace, cluster, find_policy(name))
    assert all(story.ended_at is not None and story.left_s == 0 for story in found.stories)
    assert all((story.ended_at or 0) >= story.job.at + story.job.seconds - 1e-6 for story in found.stories)
    assert max(busy for _, busy, _ in found.busy) <= cluster.gpus
    assert min(busy for _, busy, _ in found.busy) >= 0
    figures = figures_of(name, trace, cluster, found)
    assert figures.utilisation is not None
    assert 0 < figures.utilisation <= 1
    assert figures.waiting_s >= 0


def test_a_replay_is_the_same_each_time() -> None:
    trace = synthetic_trace(jobs=120, span_s=86400.0, seed=5)
    cluster = uniform_cluster(trace.gpus_for(1.2))
    first, again = (replay(trace, cluster, POLICIES["windlass"]) for _ in range(2))
    assert ends(first) == ends(again)


def test_projects_get_their_shares_while_they_contend() -> None:
    rows = [Job(name=f"{p}{n}", at=0, seconds=600, gpus=1, project=p) for n in range(600) for p in "abc"]
    cluster = Cluster(
        nodes=(NodeGroup(count=3, gpus=8),),
        projects={"a": ProjectShare(weight=3), "b": ProjectShare(weight=2), "c": ProjectShare(weight=1)},
    )
    found = replay(make_trace(rows), cluster, POLICIES["windlass"])
    for contention in found.contention.values():
        assert contention.got == pytest.approx(contention.due, rel=0.05)


def test_a_job_that_no_cluster_of_this_size_can_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="j0 wants 16 GPUs; the cluster has 8"):
        replay(jobs((0, 10, 16), (1, 10, 1)), uniform_cluster(8), POLICIES["windlass"])


def test_the_order_that_learns_is_near_the_one_that_knows() -> None:
    """And far from the order of arrival, though each preemption costs a minute."""
    trace = synthetic_trace(jobs=1200, span_s=10 * 86400.0, seed=1).as_one_project()
    cluster = uniform_cluster(trace.gpus_for(0.95))
    best = try_policy("clairvoyant", trace, cluster, Conditions()).figures
    ours = try_policy("windlass", trace, cluster, Conditions()).figures
    assert ours.mean_s < 1.5 * best.mean_s
    assert math.isclose(best.waiting_s, best.mean_s - sum(job.seconds for job in trace.jobs) / len(trace.jobs))


def test_jains_index() -> None:
    assert jain([1, 1, 1]) == 1
    assert jain([1, 0, 0]) == pytest.approx(1 / 3)


def test_lost_time_is_part_of_what_it_costs() -> None:
    trace = jobs((0, 100_000, 8), (40_000, 100, 8))
    cluster = uniform_cluster(8).model_copy(update={"nodes": (NodeGroup(gpus=8, price_per_hour=8.0),)})
    found = replay(trace, cluster, POLICIES["windlass"], AT_ONCE)
    figures = figures_of("windlass", trace, cluster, found)
    assert figures.usd == pytest.approx((100_000 + 100 + 60) * 8 / 3600)
    free = replay(trace, cluster, POLICIES["windlass"], replace(AT_ONCE, restart_s=0))
    assert figures_of("windlass", trace, cluster, free).lost_gpu_hours == 0


@pytest.mark.parametrize(("gpus", "expected"), [(4, (1, 4)), (16, (2, 8)), (17, (3, 6)), (13, (2, 7)), (34, (5, 7))])
def test_a_job_lies_on_as_few_nodes_as_hold_it(gpus: int, expected: tuple[int, int]) -> None:
    [want] = _Shapes(uniform_cluster(64)).wants(jobs((0, 10, gpus)).jobs[0])
    assert (want.nodes, want.gpus) == expected


def test_a_job_lies_on_nodes_that_there_are() -> None:
    cluster = Cluster(nodes=(NodeGroup(count=1, gpus=8), NodeGroup(count=4, gpus=4)))
    shapes = _Shapes(cluster)
    found = [shapes.wants(jobs((0, 10, gpus)).jobs[0])[0] for gpus in (8, 16, 20)]
    assert [(want.nodes, want.gpus) for want in found] == [(1, 8), (4, 4), (5, 4)]
    with pytest.raises(InvalidInput, match="the same on each of its nodes"):
        shapes.wants(jobs((0, 10, 21)).jobs[0])


@pytest.mark.parametrize("name", ["fifo", "backfill"])
def test_the_order_of_arrival_is_that_over_all_projects(name: str) -> None:
    rows = [("a", 0.0), ("a", 1.0), ("a", 2.0), ("b", 3.0), ("a", 4.0)]
    trace = make_trace(Job(name=f"j{at:g}", at=at, seconds=100, gpus=8, project=p) for p, at in rows)
    cluster = Cluster(nodes=(NodeGroup(),), projects={"b": ProjectShare(weight=9), "a": ProjectShare()})
    tried = try_policy(name, trace, cluster, AT_ONCE)
    assert tried.times_s == (100, 199, 298, 397, 496)
    assert tried.figures.share_error is not None


def test_the_scheduler_looks_no_more_often_than_told() -> None:
    trace = jobs((0, 7200, 8), (1, 10, 8))
    policy = replace(POLICIES["windlass"], preempts=False)
    often = replay(trace, uniform_cluster(8), policy, Conditions(pass_s=30))
    seldom = replay(trace, uniform_cluster(8), policy, Conditions(pass_s=1800))
    assert often.passes > 7200 / 300
    assert seldom.passes < 7
