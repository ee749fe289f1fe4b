"""Projects that have less than their weight gives them, and those that have more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.scheduling.core.clusters import node, policy, running, share, snapshot, waiting, want
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.fairness import MOST_TILT, Accounts, accrue
from windlass.scheduling.core.shares import Shares
from windlass.scheduling.core.types import Cause, Project, Running, Snapshot

NOW = 10_000.0


def small(run_id: str, where: str, at: int, project: str, **more: object) -> Running:
    return running(run_id, share(where, gpus=1, first=at), project=project, saved_at=NOW, **more)  # type: ignore[arg-type]


def crowd(*projects: str) -> list[Running]:
    """A node with runs of one GPU, of these projects in turn."""
    return [small(f"r{at}", "a", at, projects[at % len(projects)]) for at in range(8)]


def stopped(found: Snapshot, **more: object) -> list[tuple[str, str, str]]:
    return [(stop.run_id, stop.by, stop.cause) for stop in decide(found, policy(index_margin=None, **more), NOW).stops]


def test_one_with_too_little_displaces_runs_of_those_with_too_much() -> None:
    here = snapshot([waiting("w", project="b")], [node("a")], running=crowd("a"))
    assert stopped(here) == [("r0", "w", Cause.SHARE)]
    assert stopped(here, preempts_for_shares=False) == []
    unsaved = [replace(run, saved_at=None) for run in crowd("a")]  # all that they did would be lost
    assert stopped(replace(here, running=tuple(unsaved))) == []


def test_nobody_is_displaced_who_has_no_more_than_is_due() -> None:
    here = snapshot([waiting("w", project="b")], [node("a")], running=crowd("a", "b"))
    assert stopped(here) == []
    heavy = [Project(name="b", weight=3)]
    assert len(stopped(replace(here, projects=tuple(heavy)))) == 1


def test_a_gang_takes_from_a_project_what_brings_both_nearer_to_what_is_due() -> None:
    gang = waiting("w", want(gpus=6), project="b")
    few, some = ["a"] * 8, ["a", "a", "a", "a", "a", "b", "b", "b"]
    for projects, count in ((few, 6), (some, 0)):
        here = snapshot([gang], [node("a")], running=crowd(*projects))
        assert len(stopped(here)) == count


def test_shares_come_after_priorities_and_guarantees() -> None:
    held = [replace(run, priority=1) for run in crowd("a")]
    assert stopped(snapshot([waiting("w", project="b")], [node("a")], running=held)) == []
    covered = [Project(name="a", quota={"gpu": 8})]
    assert stopped(snapshot([waiting("w", project="b")], [node("a")], running=crowd("a"), projects=covered)) == []


def test_a_gang_that_is_owed_has_small_ones_of_its_own_stopped_among_others_only() -> None:
    gang = waiting("gang", want(gpus=4), project="b")
    nodes = [node("a", gpus=4), node("c", gpus=12)]
    others = [running("big", share("c", gpus=12), project="a", preemptible=False)]
    mixed = [small(f"r{at}", "a", at, "ab"[at % 2]) for at in range(4)]
    assert len(stopped(snapshot([gang], nodes, running=[*others, *mixed]))) == 4
    own = [small(f"r{at}", "a", at, "b") for at in range(4)]
    assert stopped(snapshot([gang], nodes, running=[*others, *own])) == []


def test_what_is_due_is_shared_out_level_by_level_among_those_that_want_it() -> None:
    projects = [Project(name="top", weight=3), Project(name="x", parent="top"), Project(name="y", parent="top")]
    accounts = Accounts([*projects, Project(name="idle", weight=9)], [node("a")], 0.0, 1.0)
    leaves = [accounts.of(name) for name in ("x", "y", "z")]
    accounts.charge(leaves[0], want(gpus=6), 1)
    shares = Shares(accounts, leaves)
    # Of what is in use: what is idle is nobody's.
    assert [shares.due(leaf) for leaf in leaves] == pytest.approx([6 / 8 * part for part in (3 / 8, 3 / 8, 1 / 4)])
    assert shares.is_owed(leaves[2], 2 / 8)
    assert not shares.is_owed(leaves[2], 5 / 8)
    assert shares.gives_way(leaves[0], leaves[1], 3 / 8)
    assert not shares.gives_way(leaves[0], leaves[1], 4 / 8)
    assert shares.gives_way(leaves[0], leaves[2], 1 / 8)
    assert not shares.gives_way(leaves[0], leaves[2], 2 / 8)  # what is above it has no more than that too much


def test_what_is_kept_idle_hides_nobody_who_has_too_much() -> None:
    """Half of the cluster has nobody: of the other half one has all."""
    gang = waiting("w", want(gpus=4), project="b")
    nodes = [node("a", gpus=4), *(node(f"idle{at}", gpus=2) for at in range(2))]
    held = [small(f"r{at}", "a", at, "a") for at in range(4)]
    assert len(stopped(snapshot([gang], nodes, running=held))) == 4


def test_a_gang_that_is_owed_has_small_ones_of_others_stopped_that_come_back_elsewhere() -> None:
    """`c` has no more than is due to it; `a` has, but not where a gang of `b` finds room."""
    gang = waiting("gang", want(gpus=4), project="b")
    nodes = [node("here", gpus=4), *(node(f"there{at}", gpus=1) for at in range(8))]
    much = [small(f"a{at}", f"there{at}", 0, "a") for at in range(8)]
    fair = [small(f"r{at}", "here", at, "c") for at in range(4)]
    here = snapshot([gang], nodes, running=[*much, *fair])
    assert len(stopped(here)) == 4
    alike = running("alike", share("here", gpus=4), project="c", saved_at=NOW)  # it would not come back so easily
    assert stopped(replace(here, running=(*much, alike))) == []


@pytest.mark.parametrize("why", [{"preemptible": False}, {"priority": 1}, {"started_at": NOW - 1}])
def test_nobody_loses_its_share_to_a_gang_while_those_with_too_much_cannot_be_stopped(why: dict[str, object]) -> None:
    gang = waiting("gang", want(gpus=4), project="b")
    nodes = [node("here", gpus=4), *(node(f"there{at}", gpus=1) for at in range(8))]
    much = [replace(small(f"a{at}", f"there{at}", 0, "a"), **why) for at in range(8)]  # type: ignore[arg-type]
    fair = [small(f"r{at}", "here", at, "c") for at in range(4)]
    assert stopped(snapshot([gang], nodes, running=[*much, *fair])) == []


def lately(**shares: float) -> tuple[Project, ...]:
    """Which share each had on average, for much longer than a half-life."""
    half_life_s = policy().half_life_s
    return tuple(
        Project(name=name, usage=accrue(0.0, part, 100 * half_life_s, half_life_s), usage_at=NOW)
        for name, part in shares.items()
    )


def test_whoever_had_too_little_lately_counts_for_more_within_bounds() -> None:
    for had, pulls in (
        ({"a": 0.5, "b": 0.5}, (1.0, 1.0)),
        ({"a": 0.50002, "b": 0.49998}, (1 - 0.0096, 1 + 0.0096)),
        ({"a": 0.9, "b": 0.1}, (1 - MOST_TILT, 1 + MOST_TILT)),
        ({"a": 1.0, "b": 0.0}, (1 - MOST_TILT, 1 + MOST_TILT)),
    ):
        accounts = Accounts(lately(**had), [node("a")], NOW, policy().half_life_s)
        leaves = [accounts.of(name) for name in had]
        accounts.tilt(leaves)
        assert [leaf.pull for leaf in leaves] == pytest.approx(pulls, rel=1e-3)
        assert [leaf.weight for leaf in leaves] == [1.0, 1.0]
        accounts.tilt(leaves[:1])  # alone it is owed nothing
        assert leaves[0].pull == 1.0


def test_what_one_had_too_little_is_paid_back() -> None:
    here = snapshot([waiting("w", project="b")], [node("a")], running=crowd("a", "b"))
    assert stopped(replace(here, projects=lately(a=0.5, b=0.5))) == []
    assert [by for _, by, _ in stopped(replace(here, projects=lately(a=0.7, b=0.3)))] == ["w"]
    assert stopped(replace(here, projects=lately(a=0.3, b=0.7))) == []
