"""Runs that take any number of nodes within a range."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.scheduling.test_place import node, snapshot, waiting
from windlass.core.resources import Node, NodeShare, Placement, Resources
from windlass.scheduling.place import decide_placements
from windlass.scheduling.types import Aside, WaitingRun


def elastic(run_id: str = "e", *, least: int = 1, most: int = 4, cpus: float = 8, queued_at: float = 0) -> WaitingRun:
    return replace(waiting(run_id, Resources(nodes=least, cpus=cpus), queued_at=queued_at), most_nodes=most)


def nodes(count: int, engine: str = "local") -> tuple[Node, ...]:
    return tuple(node(f"{engine}-{number}", engine=engine) for number in range(count))


def places(*runs: WaitingRun, there: tuple[Node, ...]) -> dict[str, list[str]]:
    decisions = decide_placements(snapshot(*runs, nodes=there))
    return {decision.run_id: [share.node for share in decision.placement.shares] for decision in decisions}


def test_it_takes_what_is_free_within_its_range() -> None:
    assert [len(places(elastic(), there=nodes(count)).get("e", [])) for count in (0, 1, 3, 4, 9)] == [0, 1, 3, 4, 4]
    assert places(elastic(least=2), there=nodes(1)) == {}


def test_it_takes_the_engine_with_the_most_nodes() -> None:
    assert places(elastic(), there=nodes(2, "x") + nodes(3, "y")) == {"e": ["y-0", "y-1", "y-2"]}


def test_it_goes_back_to_the_nodes_that_are_left() -> None:
    before = Placement(
        engine="local",
        shares=tuple(NodeShare(node=f"local-{number}", cpus=8, memory_bytes=0) for number in (3, 1, 0, 2)),
    )
    there = tuple(one for one in nodes(5) if one.name != "local-1")
    again = replace(elastic(most=4), before=before)
    assert places(again, there=there) == {"e": ["local-3", "local-4", "local-0", "local-2"]}
    assert places(again, there=there[:3]) == {"e": ["local-3", "local-2", "local-0"]}


def test_it_would_rather_be_smaller_than_on_a_node_that_is_set_aside() -> None:
    broken = Aside(reason="ECC", since=0, until=100)
    there = replace(snapshot(elastic(), nodes=nodes(4)), aside={("local", "local-1"): broken})
    [decision] = decide_placements(there)
    assert [share.node for share in decision.placement.shares] == ["local-0", "local-2", "local-3"]
    alone = replace(snapshot(elastic(), nodes=nodes(1)), aside={("local", "local-0"): broken})
    assert len(decide_placements(alone)) == 1  # better than none


def test_those_behind_it_get_what_it_leaves() -> None:
    other = waiting("o", Resources(cpus=8), queued_at=1)
    assert places(elastic(most=2), other, there=nodes(3)) == {"e": ["local-0", "local-1"], "o": ["local-2"]}
