from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.scheduling.core.clusters import node, policy, running, share, snapshot, started, waiting, want
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.types import Project, Reservation, Snapshot

NOW = 10_000.0


def blocked_gang(*more: object) -> Snapshot:
    """Two nodes of three are free, and the gang wants three."""
    held = [running("r", share("c", gpus=8), ends_at=NOW + 1000, preemptible=False)]
    gang = waiting("gang", want(gpus=8, nodes=3), queued_at=1)
    nodes = [node("a"), node("b"), node("c"), node("d", gpus=2)]
    return snapshot([gang, *more], nodes, running=held)  # type: ignore[list-item]


def test_room_is_kept_for_a_gang_that_does_not_fit_yet() -> None:
    found = decide(blocked_gang(waiting("small", want(gpus=4), queued_at=2)), policy(), NOW)
    assert found.starts == ()
    assert found.reservations[0] == Reservation(run_id="gang", at=NOW + 1000, engine="x", nodes=("a", "b", "c"))


def test_others_start_where_they_are_not_in_its_way() -> None:
    assert started(blocked_gang(waiting("small", want(gpus=2), queued_at=2)), now=NOW) == ["small"]


def test_what_is_over_before_starts_in_the_room_that_is_kept() -> None:
    brief = waiting("brief", want(gpus=4), queued_at=2, longest_s=900)
    assert started(blocked_gang(brief), now=NOW) == ["brief"]
    lengthy = waiting("lengthy", want(gpus=4), queued_at=2, longest_s=1100)
    assert started(blocked_gang(lengthy), now=NOW) == []
    both = [waiting(f"{at}", want(gpus=8), queued_at=2, longest_s=900) for at in range(3)]
    assert started(blocked_gang(*both), now=NOW) == ["0", "1"]


def test_without_backfill_nobody_overtakes() -> None:
    found = blocked_gang(waiting("small", want(gpus=2), queued_at=2))
    assert started(found, now=NOW, backfill=False) == []


def test_without_reservations_everybody_does() -> None:
    found = blocked_gang(waiting("small", want(gpus=4), queued_at=2))
    assert started(found, now=NOW, reservations=0) == ["small"]


def test_what_is_left_beside_a_reserved_share_may_be_used() -> None:
    held = [running("r", share("a", gpus=4, cpus=4), ends_at=NOW + 1000, preemptible=False)]
    runs = [waiting("six", want(gpus=6)), waiting("two", want(gpus=2), queued_at=2)]
    runs += [waiting("four", want(gpus=3), queued_at=1)]
    found = decide(snapshot(runs, [node("a")], running=held), policy(reservations=1), NOW)
    assert [start.run_id for start in found.starts] == ["two"]


def test_one_of_which_nothing_is_known_is_thought_to_go_on_for_as_long_as_it_has() -> None:
    held = [running("r", share("a", gpus=8), started_at=NOW - 700, preemptible=False)]
    found = decide(snapshot([waiting("w", want(gpus=8))], [node("a")], running=held), policy(), NOW)
    assert found.reservations[0].at == NOW + 700


def test_rooms_are_kept_for_the_first_few_shapes_without_taking_from_each_other() -> None:
    held = [
        running(name, share(name, gpus=8), ends_at=NOW + 100 * at, preemptible=False)
        for at, name in enumerate("abcd", 1)
    ]
    runs = [waiting("two", want(gpus=8, nodes=2), queued_at=1), waiting("one", want(gpus=8), queued_at=2)]
    found = decide(snapshot(runs, [node(name) for name in "abcd"], running=held), policy(), NOW)
    assert [(kept.run_id, kept.nodes) for kept in found.reservations] == [("two", ("a", "b")), ("one", ("c",))]


def test_what_can_never_run_has_nothing_kept_and_holds_nobody_up() -> None:
    runs = [waiting("never", want(gpus=16)), waiting("w", queued_at=2)]
    found = decide(snapshot(runs, [node("a")]), policy(backfill=False), NOW)
    assert [start.run_id for start in found.starts] == ["w"]
    assert found.reservations == ()


def test_what_is_left_of_shared_gpus_is_used_unless_they_are_to_come_back_whole() -> None:
    """The gang of a node waits for seven GPUs that are held wholly, or for the shared one too."""
    half = running("half", share("a", gpus=1, first=7, part=0.5), wants=want(gpus=0.5), ends_at=NOW + 500)
    held = [half, running("r", share("a", gpus=7), ends_at=NOW + 1000, preemptible=False)]
    other = waiting("other", want(gpus=0.5), queued_at=2)
    for gpus, expected in ((7, ["other"]), (8, [])):
        runs = [waiting("wide", want(gpus=gpus), queued_at=1), other]
        found = decide(snapshot(runs, [node("a")], running=held), policy(preempts=False), NOW)
        assert [start.run_id for start in found.starts] == expected
        assert found.reservations[0].run_id == "wide"


def test_room_that_was_kept_is_kept_again_before_others_have_their_turn() -> None:
    """Half of the node has come together for the gang. Another project's turn comes first, but not for that."""
    held = [running("r", share("a", gpus=4), project="z", preemptible=False, started_at=NOW - 500)]
    runs = [waiting("gang", want(gpus=8), project="p"), waiting("small", want(gpus=1), project="a")]
    projects = [Project(name="p", weight=1), Project(name="a", weight=9)]
    here = snapshot(runs, [node("a")], running=held, projects=projects)
    rules = policy(preempts_for_shares=False)
    assert [start.run_id for start in decide(here, rules, NOW).starts] == ["small"]
    kept = Reservation(run_id="gang", at=NOW + 100, engine="x", nodes=("a",))
    found = decide(replace(here, reserved=(kept,)), rules, NOW)
    assert found.starts == ()
    assert [(each.run_id, each.nodes) for each in found.reservations] == [("gang", ("a",))]


def test_a_reservation_stays_where_it_was_and_goes_to_the_first_of_its_project_that_wants_the_same() -> None:
    held = [
        running(name, share(name, gpus=8), ends_at=NOW + 100 * at, preemptible=False) for at, name in enumerate("ab", 1)
    ]
    here = snapshot([waiting("w", want(gpus=8))], [node("a"), node("b")], running=held)
    kept = Reservation(run_id="w", at=NOW + 200, engine="x", nodes=("b",))
    assert decide(here, policy(), NOW).reservations[0].nodes == ("a",)
    assert decide(replace(here, reserved=(kept,)), policy(), NOW).reservations[0].nodes == ("b",)
    both = replace(
        here, waiting=(waiting("first", want(gpus=8)), replace(here.waiting[0], served=9.0)), reserved=(kept,)
    )
    found = {each.run_id: each.nodes for each in decide(both, policy(), NOW).reservations}
    assert found == {"first": ("b",), "w": ("a",)}


def test_of_a_project_that_is_alone_whoever_ranks_first_has_what_was_kept() -> None:
    held = [running("r", share("a", gpus=4), preemptible=False, started_at=NOW - 500)]
    runs = [waiting("gang", want(gpus=8), served=5.0), waiting("small", want(gpus=1))]
    kept = Reservation(run_id="gang", at=NOW + 100, engine="x", nodes=("a",))
    here = replace(snapshot(runs, [node("a")], running=held), reserved=(kept,))
    assert started(here, now=NOW) == ["small"]


def test_what_was_kept_is_forgotten_with_the_node_the_run_or_a_higher_priority() -> None:
    held = [running("r", share("a", gpus=4), preemptible=False, started_at=NOW - 500)]
    kept = Reservation(run_id="gang", at=NOW + 100, engine="x", nodes=("a",))
    small = waiting("small", want(gpus=1), project="q", priority=1)
    here = replace(snapshot([waiting("gang", want(gpus=8)), small], [node("a")], running=held), reserved=(kept,))
    assert started(here, now=NOW) == ["small"]
    gone = Reservation(run_id="gang", at=NOW + 100, engine="x", nodes=("z",))
    for reserved in (gone, Reservation(run_id="nobody", at=NOW, engine="x", nodes=("a",))):
        assert decide(replace(here, reserved=(reserved,)), policy(), NOW).starts


def test_nobody_is_stopped_for_room_that_is_promised_to_another() -> None:
    """The gang waits for the node. That one of its runs is stopped would not make room for another there."""
    held = [
        running(f"r{at}", share("a", gpus=1, first=at), project="b", served=1e6, saves_on_notice=True)
        for at in range(8)
    ]
    gang = waiting("gang", want(gpus=8), queued_at=-9e5)
    runs = [gang, waiting("small", want(gpus=1), project="b")]
    kept = Reservation(run_id="gang", at=NOW + 9e5, engine="x", nodes=("a",))
    here = replace(snapshot(runs, [node("a")], running=held), reserved=(kept,))
    rules = policy(preempts_for_shares=False, starving_s=1e9)
    assert decide(here, rules, NOW).stops == ()
    assert len(decide(replace(here, reserved=(), waiting=tuple(runs[1:])), rules, NOW).stops) == 1


@pytest.mark.parametrize(
    ("project", "more"),
    [
        (Project(name="p", limit={"gpu": 8}), {}),
        (Project(name="p", limit={"runs": 1}), {}),
        (Project(name="p", quota={"gpu": 8}, limit={"gpu": 8}), {}),
        (Project(name="p"), {"user_limit": {"gpu": 8}}),
    ],
)
def test_what_is_kept_for_a_run_does_not_count_against_it_in_its_turn(project: Project, more: dict[str, Any]) -> None:
    """Kept in one pass and free in the next, it starts there, however near it is to its limits."""
    kept = Reservation(run_id="w", at=NOW, engine="x", nodes=("a",))
    here = snapshot([waiting("w", want(gpus=8), user="u", priority=1)], [node("a")], projects=[project])
    found = decide(replace(here, reserved=(kept,)), policy(**more), NOW)
    assert [start.run_id for start in found.starts] == ["w"]


def test_without_backfill_nothing_is_kept_and_limits_hold_up_their_own_only() -> None:
    runs = [waiting("a1", want(gpus=8), project="a"), waiting("b1", want(gpus=8), project="b")]
    kept = Reservation(run_id="b1", at=NOW, engine="x", nodes=("a",))
    here = replace(snapshot(runs, [node("a")]), reserved=(kept,))
    assert started(here, now=NOW, backfill=False) == ["a1"]
    limited = replace(here, projects=(Project(name="a", limit={"gpu": 4}),))
    assert started(limited, now=NOW, backfill=False) == ["b1"]


def test_what_was_interrupted_does_not_go_on_in_room_that_is_kept_for_others() -> None:
    runs = [waiting("high", want(gpus=8), priority=1), waiting("low", want(gpus=8), interrupted=True)]
    kept = Reservation(run_id="high", at=NOW, engine="x", nodes=("a",))
    assert started(replace(snapshot(runs, [node("a")]), reserved=(kept,)), now=NOW) == ["high"]


def test_a_gpu_that_is_lent_in_part_comes_back_whole() -> None:
    """The rest of it is for nobody who may stay longer."""
    held = [running("r", share("a", gpus=1), ends_at=NOW + 1000, preemptible=False)]
    runs = [
        waiting("both", want(gpus=2), queued_at=1),
        waiting("brief", want(gpus=0.25), queued_at=2, longest_s=300),
        waiting("lengthy", want(gpus=0.5), queued_at=3),
    ]
    found = decide(snapshot(runs, [node("a", gpus=2)], running=held), policy(), NOW)
    assert [start.run_id for start in found.starts] == ["brief"]
    assert [kept.at for kept in found.reservations] == [NOW + 1000]
