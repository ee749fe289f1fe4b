from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.scheduling.core.clusters import GB, node, policy, running, share, snapshot, started, waiting, want
from windlass.core.errors import InvalidInput
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.table import held_pool
from windlass.scheduling.core.types import Health, Project


def test_priority_comes_first_then_what_was_served_least_then_time() -> None:
    runs = [
        waiting("served", served=100),
        waiting("late", queued_at=2),
        waiting("early", queued_at=1),
        waiting("high", priority=5, queued_at=3),
    ]
    assert started(snapshot(runs, [node("a", gpus=8)])) == ["high", "early", "late", "served"]


def test_a_gang_gets_all_its_nodes_or_none() -> None:
    gang = waiting("gang", want(gpus=8, nodes=2))
    assert started(snapshot([gang], [node("a", gpus=8)])) == []
    [start] = decide(snapshot([gang], [node("a", gpus=8), node("b", gpus=8)]), policy(), 0).starts
    assert [share.node for share in start.placement.shares] == ["a", "b"]
    assert all(share.gpu_indices == tuple(range(8)) for share in start.placement.shares)


def test_a_gang_stays_within_one_engine() -> None:
    gang = waiting("gang", want(gpus=8, nodes=2))
    assert started(snapshot([gang], [node("a", engine="x"), node("b", engine="y")])) == []


def test_the_fullest_node_that_has_room_is_taken() -> None:
    held = running("r", share("b", gpus=6))
    [start] = decide(snapshot([waiting("w")], [node("a"), node("b")], running=[held]), policy(), 0).starts
    assert start.placement.shares[0].node == "b"


def test_a_gang_is_packed_into_the_nearest_part_that_holds_it_with_the_least_beyond() -> None:
    nodes = [node(f"wide{at}", topology=("zone", "switch1")) for at in range(4)]
    nodes += [node(f"near{at}", topology=("zone", "switch2")) for at in range(3)]
    nodes += [node(f"far{at}", topology=("zone2", f"switch{at}")) for at in range(3, 5)]
    [start] = decide(snapshot([waiting("gang", want(gpus=8, nodes=3))], nodes), policy(), 0).starts
    assert {share.node for share in start.placement.shares} == {"near0", "near1", "near2"}
    [start] = decide(snapshot([waiting("gang", want(gpus=8, nodes=6))], nodes), policy(), 0).starts
    assert all(not share.node.startswith("far") for share in start.placement.shares)


def test_what_was_interrupted_goes_on_before_others_have_their_turn() -> None:
    runs = [waiting("new", want(gpus=8)), waiting("broken", want(gpus=8), served=1e6, interrupted=True)]
    assert started(snapshot(runs, [node("a")])) == ["broken"]
    urgent = [replace(runs[0], priority=1), runs[1]]
    assert started(snapshot(urgent, [node("a")])) == ["new"]
    given = [replace(run, interrupted=False) for run in runs]
    assert started(snapshot(given, [node("a")])) == ["new"]


def test_types_of_gpus_are_taken_in_order_of_preference() -> None:
    nodes = [node("a", gpu_type="a100"), node("h", gpu_type="h100")]
    both = (want(gpus=8, gpu_type="h100"), want(gpus=8, gpu_type="a100"))
    first, second = decide(snapshot([waiting("1", *both), waiting("2", *both)], nodes), policy(), 0).starts
    assert (first.placement.shares[0].node, second.placement.shares[0].node) == ("h", "a")
    assert second.want.gpu_type == "a100"


def test_a_gang_is_of_one_type_of_gpu_where_one_has_enough() -> None:
    nodes = [node("a1", gpu_type="a100"), node("b1", gpu_type="h100"), node("b2", gpu_type="h100")]
    [start] = decide(snapshot([waiting("gang", want(gpus=8, nodes=2))], nodes), policy(), 0).starts
    assert [share.node for share in start.placement.shares] == ["b1", "b2"]
    [start] = decide(snapshot([waiting("gang", want(gpus=8, nodes=3))], nodes), policy(), 0).starts
    assert len(start.placement.shares) == 3


def test_parts_of_gpus_share_one() -> None:
    halves = [waiting(str(at), want(gpus=0.5)) for at in range(3)]
    starts = decide(snapshot(halves, [node("a", gpus=2)]), policy(), 0).starts
    assert [start.placement.shares[0].gpu_indices for start in starts] == [(0,), (0,), (1,)]
    assert all(start.placement.shares[0].gpu_part == 0.5 for start in starts)
    held = running("r", share("a", gpus=1, part=0.75), wants=want(gpus=0.75))
    starts = decide(
        snapshot([*halves, waiting("4", want(gpus=0.25))], [node("a", gpus=2)], running=[held]), policy(), 0
    )
    assert [start.placement.shares[0].gpu_indices for start in starts.starts] == [(1,), (1,), (0,)]


def test_what_runs_without_gpus_keeps_off_nodes_that_have_them() -> None:
    nodes = [node("a", gpus=8), node("c", gpus=0)]
    [start] = decide(snapshot([waiting("cpu", want(gpus=0, cpus=4))], nodes), policy(), 0).starts
    assert start.placement.shares[0].node == "c"


def test_labels_spot_engines_and_memory_are_honoured() -> None:
    nodes = [node("a", labels=frozenset({"disk=fast"})), node("s", spot=True)]
    assert started(snapshot([waiting("w", want(labels=frozenset({"disk=slow"})))], nodes)) == []
    assert started(snapshot([waiting("w", want(engines=frozenset({"y"})))], nodes)) == []
    assert started(snapshot([waiting("w", want(memory_bytes=65 * GB))], nodes)) == []
    eight = [waiting(str(at), want(gpus=8, spot_ok=False)) for at in range(2)]
    assert started(snapshot(eight, nodes)) == ["0"]


@pytest.mark.parametrize(("health", "expected"), [(Health.DOUBTED, "b"), (Health.CLOSED, "b")])
def test_nodes_that_are_set_aside_are_avoided(health: Health, expected: str) -> None:
    nodes = [node("a", health=health), node("b")]
    runs = [waiting(str(at), want(gpus=8)) for at in range(2)]
    [start] = decide(snapshot(runs, nodes), policy(), 0).starts
    assert start.placement.shares[0].node == expected


def test_a_doubted_node_is_used_by_those_who_could_not_run_otherwise() -> None:
    nodes = [node("a", health=Health.DOUBTED), node("b")]
    assert started(snapshot([waiting("gang", want(gpus=8, nodes=2))], nodes)) == ["gang"]
    nodes = [node("a", health=Health.CLOSED), node("b")]
    assert started(snapshot([waiting("gang", want(gpus=8, nodes=2))], nodes)) == []


def test_projects_get_what_their_weights_say() -> None:
    runs = [waiting(f"{project}{at}", project=project) for project in "abc" for at in range(12)]
    projects = [Project(name="a", weight=3), Project(name="b", weight=2), Project(name="c")]
    got = [run_id[0] for run_id in started(snapshot(runs, [node("n", gpus=12, cpus=96)], projects=projects))]
    assert [got.count(project) for project in "abc"] == [6, 4, 2]


def test_projects_below_others_share_what_those_get() -> None:
    runs = [waiting(f"{project}{at}", project=project) for project in "abc" for at in range(12)]
    projects = [Project(name="top"), Project(name="a", parent="top"), Project(name="b", parent="top")]
    got = [run_id[0] for run_id in started(snapshot(runs, [node("n", gpus=12, cpus=96)], projects=projects))]
    assert [got.count(project) for project in "abc"] == [3, 3, 6]


def test_who_used_much_lately_comes_later() -> None:
    week = 7 * 24 * 3600.0
    projects = [Project(name="a", usage=0.5 * week, usage_at=0), Project(name="b")]
    runs = [waiting(f"{project}{at}", project=project) for project in "ab" for at in range(8)]
    got = [run_id[0] for run_id in started(snapshot(runs, [node("n")], projects=projects))]
    assert got.count("b") > got.count("a") > 0
    later = decide(snapshot(runs, [node("n")], projects=projects), policy(), 20 * week).starts
    assert len([start for start in later if start.run_id.startswith("a")]) == 4


def test_nobody_passes_the_limit_of_a_project_or_of_one_above_it() -> None:
    projects = [Project(name="top", limit={"gpu": 6}), Project(name="a", parent="top", limit={"gpu:h100": 2})]
    runs = [waiting(f"h{at}", want(gpu_type="h100"), project="a") for at in range(4)]
    runs += [waiting(f"o{at}", want(gpu_type="t4"), project="a") for at in range(8)]
    nodes = [node("n", gpu_type="h100"), node("t", gpu_type="t4")]
    got = started(snapshot(runs, nodes, projects=projects))
    assert len([run_id for run_id in got if run_id[0] == "h"]) == 2
    assert len(got) == 6


def test_a_gpu_and_a_half_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"1\.5 GPUs on a node: must be a whole number, or a part of one"):
        want(gpus=1.5)


def test_a_project_without_weight_gets_what_nobody_else_wants() -> None:
    runs = [waiting(f"{name}{at}", project=name) for name in "ab" for at in range(6)]
    got = started(snapshot(runs, [node("n")], projects=[Project(name="a", weight=0)]))
    assert [run_id[0] for run_id in got].count("b") == 6


def test_gpus_count_by_the_type_of_the_nodes_that_runs_got() -> None:
    """Whether a run names a type or not; and one that names none goes where its project has some left."""
    nodes = [node("h", gpus=4, gpu_type="h100"), node("t", gpus=4, gpu_type="t4", price_per_hour=9.0)]
    projects = [Project(name="p", limit={"gpu:h100": 3})]
    held = [running("r", share("h", gpus=2), wants=want(gpus=2))]
    runs = [waiting(f"w{at}", want(gpus=1)) for at in range(8)]
    starts = decide(snapshot(runs, nodes, running=held, projects=projects), policy(), 0).starts
    assert [start.placement.shares[0].node for start in starts] == ["h", "t", "t", "t", "t"]
    gang = waiting("gang", want(gpus=2, nodes=2))
    assert started(snapshot([gang], nodes, projects=[Project(name="p", limit={"gpu:t4": 1})])) == []
    assert started(snapshot([gang], nodes, projects=[Project(name="p", limit={"gpu:t4": 4})])) == ["gang"]
    limits = {"gpu:h100": 2}
    found = decide(snapshot(runs, nodes, running=held), policy(user_limit=limits), 0).starts
    assert [start.placement.shares[0].node for start in found] == ["t"] * 4


def test_the_limit_of_one_user_settles_nothing_for_another() -> None:
    """The first may have one alternative only, which has no room; the second may have the other."""
    nodes = [node("h", gpus=4, gpu_type="h100"), node("t", gpus=4, gpu_type="t4")]
    held = [running("r", share("t", gpus=4), project="q", user="z"), running("s", share("h", gpus=1), user="one")]
    both = (want(gpus=2, gpu_type="h100"), want(gpus=2, gpu_type="t4"))
    runs = [waiting("w1", *both, user="one", queued_at=0), waiting("w2", *both, user="two", queued_at=1)]
    found = snapshot(runs, nodes, running=held)
    assert started(found, user_limit={"gpu:h100": 2}, preempts=False) == ["w2"]


def test_more_that_is_held_than_a_node_offers_counts_in_whatever_order() -> None:
    """Of three GPUs one is shared, and one that is held is none of them any more: one is left."""
    held = [
        running("half", share("a", gpus=1, first=2, part=0.5), wants=want(gpus=0.5)),
        running("gone", share("a", gpus=1, first=5)),
    ]
    for order in (held, held[::-1]):
        pool = held_pool(snapshot([], [node("a", gpus=3)], running=order))
        assert pool.gpus == [0b001]
    runs = [waiting(str(at), want(gpus=0.5)) for at in range(4)]
    found = [
        {start.run_id: start.placement.shares[0].gpu_indices for start in decide(each, policy(), 0).starts}
        for each in (snapshot(runs, [node("a", gpus=3)], running=order) for order in (held, held[::-1]))
    ]
    assert found[0] == found[1] == {"0": (0,), "1": (0,)}
