from __future__ import annotations

from dataclasses import replace

from tests.unit.scheduling.core.clusters import node, policy, running, share, snapshot, waiting, want
from windlass.core.resources import Placement
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.types import Cause, Decisions, Health, Project, Running, Snapshot

NOW = 10_000.0


def full(run_id: str, where: str = "a", **more: object) -> Running:
    return running(run_id, share(where, gpus=8), **more)  # type: ignore[arg-type]


def decided(found: Snapshot, **more: object) -> Decisions:
    return decide(found, policy(**more), NOW)


def test_a_higher_priority_has_the_one_stopped_that_loses_least() -> None:
    nodes = [node("a"), node("b"), node("c")]
    held = [
        full("old", "a", saved_at=NOW - 1000),
        full("fresh", "b", saved_at=NOW - 10),
        full("never", "c", started_at=NOW - 5000),
    ]
    found = decided(snapshot([waiting("w", want(gpus=8), priority=5)], nodes, running=held))
    [stop] = found.stops
    assert (stop.run_id, stop.by, stop.cause, stop.lost) == ("fresh", "w", Cause.PRIORITY, 8 * (10 + 60))
    [kept] = found.reservations
    assert (kept.run_id, kept.nodes, kept.at) == ("w", ("b",), NOW + 30)


def test_one_that_saves_on_the_notice_loses_its_restart_only() -> None:
    held = [full("saved", "a", saved_at=NOW - 10), full("saves", "b", saved_at=NOW - 900, saves_on_notice=True)]
    found = decided(snapshot([waiting("w", want(gpus=8), priority=5)], [node("a"), node("b")], running=held))
    assert [stop.run_id for stop in found.stops] == ["saves"]


def test_small_ones_are_stopped_together_if_they_lose_less_than_a_large_one() -> None:
    small = [running(f"s{at}", share("a", gpus=1, first=at), saved_at=NOW - 1) for at in range(4)]
    large = running("large", share("a", gpus=4, first=4), saved_at=NOW - 500)
    found = decided(snapshot([waiting("w", want(gpus=4), priority=5)], [node("a")], running=[*small, large]))
    assert {stop.run_id for stop in found.stops} == {"s0", "s1", "s2", "s3"}


def test_no_more_are_stopped_than_needed() -> None:
    cheap = running("cheap", share("a", gpus=2), saved_at=NOW)
    enough = running("enough", share("a", gpus=6, first=2), saved_at=NOW)
    found = decided(snapshot([waiting("w", want(gpus=6), priority=5)], [node("a")], running=[cheap, enough]))
    assert [stop.run_id for stop in found.stops] == ["enough"]


def test_a_gang_takes_the_nodes_of_one_gang_rather_than_of_two() -> None:
    nodes = [node(name) for name in "abcd"]
    gang = running("gang", share("a", gpus=8), share("b", gpus=8), saved_at=NOW - 50)
    single = [full("c", "c", saved_at=NOW - 100), full("d", "d", saved_at=NOW - 100)]
    claim = waiting("w", want(gpus=8, nodes=2), priority=5)
    found = decided(snapshot([claim], nodes, running=[gang, *single]))
    assert [stop.run_id for stop in found.stops] == ["gang"]


def test_parts_of_a_gpu_are_stopped_together() -> None:
    halves = [running(f"h{at}", share("a", gpus=1, part=0.5), wants=want(gpus=0.5)) for at in range(2)]
    found = decided(snapshot([waiting("w", priority=5)], [node("a", gpus=1)], running=halves))
    assert {stop.run_id for stop in found.stops} == {"h0", "h1"}


def test_nobody_is_stopped_who_may_not_be() -> None:
    claim = [waiting("w", want(gpus=8), priority=5)]
    for held in (
        full("r", preemptible=False),
        full("r", priority=5, project="q"),
        full("r", started_at=NOW - 200),  # not yet for as long as it is promised
        full("r", started_at=NOW - 900, preemptions=2),  # and longer each time
    ):
        assert not decided(snapshot(claim, [node("a")], running=[held])).stops
    assert not decided(snapshot(claim, [node("a")], running=[full("r")]), preempts=False).stops


def test_room_that_is_coming_is_waited_for() -> None:
    held = [full("leaving", "a", stopping=True), full("r", "b", saved_at=NOW)]
    runs = [waiting("w", want(gpus=8), priority=5), waiting("small", want(gpus=1), project="q")]
    found = decided(snapshot(runs, [node("a"), node("b")], running=held), preempts_for_shares=False)
    assert not found.stops
    kept = found.reservations[0]
    assert (kept.run_id, kept.nodes) == ("w", ("a",))


def test_one_that_is_stopped_makes_room_for_all_that_fit() -> None:
    claims = [waiting(f"w{at}", want(gpus=4), priority=5) for at in range(3)]
    held = [full("a", "a"), full("b", "b")]
    found = decided(snapshot(claims, [node("a"), node("b")], running=held))
    assert [(stop.run_id, stop.by) for stop in found.stops] == [("a", "w0"), ("b", "w2")]


def test_what_was_guaranteed_is_reclaimed_from_those_who_borrowed_it() -> None:
    projects = [Project(name="owner", quota={"gpu": 8}), Project(name="guest", quota={"gpu": 8})]
    held = [full("within", "a", project="guest", started_at=1), full("borrowed", "b", project="guest", started_at=2)]
    nodes = [node("a"), node("b")]
    runs = [waiting("w", want(gpus=8), project="owner")]
    found = decided(snapshot(runs, nodes, running=held, projects=projects))
    [stop] = found.stops
    assert (stop.run_id, stop.cause) == ("borrowed", Cause.RECLAIM)
    # Beyond its quota it has no claim.
    more = [waiting("w", want(gpus=8, nodes=2), project="owner")]
    assert not decided(snapshot(more, nodes, running=held, projects=projects)).stops


def test_what_is_guaranteed_is_safe_from_others_whatever_their_priority() -> None:
    projects = [Project(name="owner", quota={"gpu": 8})]
    held = [full("safe", project="owner")]
    runs = [waiting("w", want(gpus=8), project="other", priority=99)]
    assert not decided(snapshot(runs, [node("a")], running=held, projects=projects)).stops


def test_a_quota_of_a_project_covers_those_below_it() -> None:
    projects = [Project(name="top", quota={"gpu": 8}), Project(name="owner", parent="top")]
    runs = [waiting("w", want(gpus=8), project="owner")]
    found = decided(snapshot(runs, [node("a")], running=[full("r", project="other")], projects=projects))
    assert [stop.cause for stop in found.stops] == [Cause.RECLAIM]


def test_what_is_guaranteed_comes_before_what_is_borrowed() -> None:
    projects = [Project(name="owner", quota={"gpu": 8})]
    runs = [waiting("high", want(gpus=8), project="other", priority=9), waiting("w", want(gpus=8), project="owner")]
    found = decided(snapshot(runs, [node("a")], projects=projects))
    assert [start.run_id for start in found.starts] == ["w"]


def test_within_a_project_rank_displaces_by_a_clear_margin() -> None:
    one = [node("a")]
    long = full("long", started_at=NOW - 4000, saves_on_notice=True)  # has had 32,000 GPU-seconds
    assert [stop.cause for stop in decided(snapshot([waiting("w")], one, running=[long])).stops] == [Cause.ORDER]
    near = waiting("w", served=16_000)
    assert not decided(snapshot([near], one, running=[long])).stops
    assert not decided(snapshot([waiting("w", project="other")], one, running=[long])).stops
    assert not decided(snapshot([waiting("w")], one, running=[long]), index_margin=None).stops
    owed = replace(long, queued_at=long.started_at - 4 * 5000)
    assert not decided(snapshot([waiting("w")], one, running=[owed]), ageing_s=5000).stops
    assert decided(snapshot([waiting("w")], one, running=[owed]), ageing_s=20_001).stops
    costly = replace(long, restart_s=5000)
    assert not decided(snapshot([waiting("w")], one, running=[costly])).stops
    unsaved = replace(long, saves_on_notice=False)  # all that it did would be lost: that is worth nobody's turn
    assert not decided(snapshot([waiting("w")], one, running=[unsaved])).stops
    assert decided(snapshot([waiting("w")], one, running=[replace(unsaved, saved_at=NOW - 60)])).stops


def test_an_elastic_run_becomes_smaller_before_anybody_is_stopped() -> None:
    elastic = want(gpus=8, nodes=1, most_nodes=2)
    wide = running("wide", share("a", gpus=8), share("b", gpus=8), wants=elastic, saves_on_notice=True)
    other = full("other", "c", started_at=NOW - 2000)
    runs = [waiting("w", want(gpus=8), project="q")]
    found = decided(snapshot(runs, [node("a"), node("b"), node("c")], running=[wide, other]))
    assert not found.stops
    [resize] = found.resizes
    assert (resize.run_id, resize.by) == ("wide", "w")
    assert [share.node for share in resize.placement.shares] == ["a"]
    high = [replace(runs[0], priority=1)]  # that could have it stopped: to become smaller costs as much, and is less
    assert [each.run_id for each in decided(snapshot(high, [node("a"), node("b")], running=[wide])).resizes] == ["wide"]
    unsaved = replace(wide, saves_on_notice=False)  # it would begin anew
    assert not decided(snapshot(runs, [node("a"), node("b"), node("c")], running=[unsaved, other])).resizes
    # Until it has become smaller, nobody else is asked.
    less = replace(wide, stopping=True, keeps=Placement(engine="x", shares=wide.placement.shares[:1]))
    found = decided(snapshot(runs, [node("a"), node("b"), node("c")], running=[less, other]))
    assert (found.stops, found.resizes) == ((), ())
    assert [(kept.run_id, kept.nodes) for kept in found.reservations] == [("w", ("b",))]


def test_an_elastic_run_on_a_closed_node_is_not_told_to_go_on_there() -> None:
    wide = running("wide", share("a", gpus=8), share("b", gpus=8), wants=want(gpus=8, nodes=1, most_nodes=3))
    nodes = [node("a", health=Health.CLOSED), node("b"), node("c", gpus=4)]
    runs = [waiting("w", want(gpus=8), project="q")]
    assert decided(snapshot(runs, nodes, running=[wide])).resizes == ()
    assert decided(snapshot([], [*nodes, node("d")], running=[wide])).resizes == ()
    assert len(decided(snapshot([], [node("a"), node("b"), node("d")], running=[wide])).resizes) == 1


def test_what_is_free_is_borrowed_before_anybody_is_stopped_for_what_is_guaranteed() -> None:
    projects = [Project(name="owner", quota={"gpu:h100": 8})]
    held = [full("guest", "h", project="guest")]
    either = waiting("w", want(gpus=8, gpu_type="h100"), want(gpus=8, gpu_type="a100"), project="owner")
    nodes = [node("h", gpu_type="h100"), node("a", gpu_type="a100")]
    found = decided(snapshot([either], nodes, running=held, projects=projects))
    assert [(start.run_id, start.want.gpu_type) for start in found.starts] == [("w", "a100")]
    assert not found.stops
    found = decided(snapshot([either], nodes[:1], running=held, projects=projects))
    assert [stop.cause for stop in found.stops] == [Cause.RECLAIM]


def test_whoever_has_the_worst_rank_but_costs_too_much_does_not_shield_the_others() -> None:
    costly = full("costly", "a", served=1e6, restart_s=1e6, saves_on_notice=True)
    cheap = full("cheap", "b", served=5e5, restart_s=10, saves_on_notice=True)
    found = decided(snapshot([waiting("w", want(gpus=8))], [node("a"), node("b")], running=[costly, cheap]))
    assert [stop.run_id for stop in found.stops] == ["cheap"]


def test_a_project_at_its_limit_displaces_its_own_run_of_lower_priority_and_nobody_else() -> None:
    nodes = [node("a"), node("b"), node("c")]
    own = full("own", "a", saved_at=NOW - 500)
    other = full("other", "b", project="q", saved_at=NOW)
    projects = [Project(name="p", limit={"gpu": 8})]
    here = snapshot([waiting("w", want(gpus=8), priority=5)], nodes, running=[own, other], projects=projects)
    found = decided(here)
    assert [(stop.run_id, stop.by, stop.cause) for stop in found.stops] == [("own", "w", Cause.PRIORITY)]
    warned = replace(here, running=(replace(own, stopping=True), other))
    assert (decided(warned).stops, decided(warned).starts) == ((), ())  # it waits for the amount, and stops nobody more
    assert [start.run_id for start in decided(replace(here, running=(other,))).starts] == ["w"]


def test_no_more_leave_for_a_limit_than_it_takes() -> None:
    held = [running(f"r{at}", share("a", gpus=2, first=2 * at), saved_at=NOW - at) for at in range(4)]
    projects = [Project(name="p", limit={"gpu": 8, "runs": 5})]
    found = decided(
        snapshot([waiting("w", want(gpus=4), priority=1)], [node("a"), node("b")], running=held, projects=projects)
    )
    assert {stop.run_id for stop in found.stops} == {"r0", "r1"}


def test_a_user_at_the_limit_displaces_only_runs_that_count_towards_it() -> None:
    held = [full("mine", "a", user="u", saved_at=NOW - 900), full("theirs", "b", user="v", saved_at=NOW)]
    claim = waiting("w", want(gpus=8, gpu_type="h100"), priority=1, user="u")
    nodes = [node(name, gpu_type="h100") for name in "abc"]
    for limit in ({"gpu": 8}, {"runs": 1}, {"gpu:h100": 8}):
        found = decided(snapshot([claim], nodes, running=held), user_limit=limit)
        assert [stop.run_id for stop in found.stops] == ["mine"]


def test_within_a_limit_that_leaves_too_little_nobody_is_stopped_in_vain() -> None:
    projects = [Project(name="p", limit={"gpu": 8})]
    here = snapshot(
        [waiting("w", want(gpus=8, nodes=2), priority=5)],
        [node("a"), node("b")],
        running=[full("own")],
        projects=projects,
    )
    assert decided(here).stops == ()


def test_several_that_lose_less_together_than_one_go_in_its_place() -> None:
    """Neither the cheapest three nor the one that would do alone."""
    lost = [(1, 29.0), (1, 30.0), (1, 31.0), (2, 1.0), (3, 29.0)]
    held, first = [], 0
    for at, (gpus, unsaved_s) in enumerate(lost):
        held.append(running(f"r{at}", share("a", gpus=gpus, first=first), saved_at=NOW - unsaved_s))
        first += gpus
    found = decided(snapshot([waiting("w", want(gpus=3), priority=1)], [node("a")], running=held))
    assert {stop.run_id for stop in found.stops} == {"r0", "r3"}


def test_the_oldest_of_a_project_displaces_those_it_comes_before_whatever_its_rank() -> None:
    """But no other that has waited as long and runs for a part of that."""
    held = [full("fresh", "a", started_at=NOW - 900, saved_at=NOW)]
    old = waiting("old", want(gpus=8), served=1e9, queued_at=NOW - 5000)
    found = decided(snapshot([old], [node("a")], running=held), ageing_s=4000)
    assert [(stop.run_id, stop.cause) for stop in found.stops] == [("fresh", Cause.ORDER)]
    assert not decided(snapshot([old], [node("a")], running=held), ageing_s=6000).stops
    owed = replace(held[0], queued_at=NOW - 900 - 5000)
    assert not decided(snapshot([old], [node("a")], running=[owed]), ageing_s=4000).stops
