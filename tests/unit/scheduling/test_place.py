from __future__ import annotations

import random
from dataclasses import replace
from itertools import zip_longest

from hypothesis import given
from hypothesis import strategies as st

from windlass.core.resources import Node, NodeShare, Placement, Resources
from windlass.scheduling.place import FreeNode, decide_placements, free_nodes, in_order, kinds_of, why_never
from windlass.scheduling.types import ClusterSnapshot, PlacementDecision, WaitingRun

GB = 10**9


def node(
    name: str = "a", *, engine: str = "local", cpus: float = 8, gpus: int = 0, gpu_type: str | None = None
) -> Node:
    return Node(engine=engine, name=name, cpus=cpus, memory_bytes=64 * GB, gpus=gpus, gpu_type=gpu_type)


def waiting(run_id: str, resources: Resources | None = None, *, priority: int = 10, queued_at: float = 0) -> WaitingRun:
    return WaitingRun(
        run_id=run_id, name=f"name-{run_id}", resources=resources or Resources(), priority=priority, queued_at=queued_at
    )


def snapshot(*runs: WaitingRun, nodes: tuple[Node, ...], held: dict[str, Placement] | None = None) -> ClusterSnapshot:
    return ClusterSnapshot(nodes=nodes, held=held or {}, waiting=runs)


def started(decisions: list[PlacementDecision]) -> list[str]:
    return [decision.run_id for decision in decisions]


def test_priority_comes_first_then_time_of_queueing() -> None:
    runs = (waiting("late", queued_at=2), waiting("early", queued_at=1), waiting("high", priority=20, queued_at=3))
    assert started(decide_placements(snapshot(*runs, nodes=(node(),)))) == ["high", "early", "late"]


def test_a_run_that_does_not_fit_yet_is_not_overtaken() -> None:
    held = {"r": Placement(engine="local", shares=(NodeShare(node="a", cpus=6, memory_bytes=0),))}
    runs = (waiting("big", Resources(cpus=4), queued_at=1), waiting("small", queued_at=2))
    assert decide_placements(snapshot(*runs, nodes=(node(),), held=held)) == []


def test_a_gang_gets_all_its_nodes_or_none() -> None:
    gang = waiting("gang", Resources(nodes=2, cpus=8))
    assert decide_placements(snapshot(gang, nodes=(node("a"),))) == []
    [decision] = decide_placements(snapshot(gang, nodes=(node("a"), node("b"))))
    assert {share.node for share in decision.placement.shares} == {"a", "b"}


def test_a_gang_stays_within_one_engine() -> None:
    gang = waiting("gang", Resources(nodes=2))
    assert decide_placements(snapshot(gang, nodes=(node("a", engine="x"), node("b", engine="y")))) == []


def test_nodes_of_one_name_on_two_engines_are_two_nodes() -> None:
    held = {"r": Placement(engine="x", shares=(NodeShare(node="a", cpus=8, memory_bytes=0),))}
    runs = (waiting("w", Resources(cpus=8)),)
    [decision] = decide_placements(snapshot(*runs, nodes=(node(engine="x"), node(engine="y")), held=held))
    assert decision.placement.engine == "y"


def test_gpus_are_handed_out_by_number_and_type() -> None:
    nodes = (node("a", gpus=2, gpu_type="h100"), node("b", gpus=4, gpu_type="l4"))
    runs = (
        waiting("x", Resources(gpus=1, gpu_type="h100"), queued_at=1),
        waiting("y", Resources(gpus=1, gpu_type="h100"), queued_at=2),
        waiting("z", Resources(gpus=1, gpu_type="h100"), queued_at=3),
    )
    decisions = decide_placements(snapshot(*runs, nodes=nodes))
    assert [d.placement.shares[0].gpu_indices for d in decisions] == [(0,), (1,)]
    assert {d.placement.shares[0].node for d in decisions} == {"a"}


def test_small_runs_go_to_the_fullest_node_that_fits() -> None:
    held = {"r": Placement(engine="local", shares=(NodeShare(node="b", cpus=5, memory_bytes=0),))}
    [decision] = decide_placements(snapshot(waiting("w"), nodes=(node("a"), node("b")), held=held))
    assert decision.placement.shares[0].node == "b"


def test_what_can_never_fit_is_told_with_what_there_is() -> None:
    assert why_never(Resources(cpus=8), kinds_of([node()])) is None
    assert why_never(Resources(), []) == "there are no nodes"
    assert why_never(Resources(cpus=9), kinds_of([node()])) == (
        "asks for 9 CPU on a node, and the largest node (a) has 8 CPU, 64.0 GB memory, 0 GPU"
    )
    assert why_never(Resources(nodes=3), kinds_of([node("a"), node("b")])) == (
        "asks for 3 nodes of 1 CPU, and only 2 can offer that"
    )
    assert why_never(Resources(gpus=1, gpu_type="h100"), kinds_of([node(gpus=1, gpu_type="l4")])) == (
        "asks for 1 CPU + 1 h100 on a node, and the largest node (a) has 8 CPU, 64.0 GB memory, 1 GPU (l4)"
    )


def test_why_never_ignores_what_is_held_now() -> None:
    """An idle cluster is what counts: a busy node will be free one day."""
    assert why_never(Resources(cpus=8), kinds_of([node()])) is None


requests = st.builds(
    Resources,
    nodes=st.integers(1, 3),
    cpus=st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.5, 8.0]),
    memory_bytes=st.sampled_from([0, GB, 30 * GB, 64 * GB]),
    gpus=st.integers(0, 4),
    gpu_type=st.sampled_from([None, "h100", "l4"]),
)
clusters = st.lists(
    st.builds(
        Node,
        engine=st.sampled_from(["x", "y"]),
        name=st.sampled_from("abcdef"),
        cpus=st.sampled_from([0.5, 4.0, 8.0]),
        memory_bytes=st.sampled_from([GB, 64 * GB]),
        gpus=st.integers(0, 4),
        gpu_type=st.sampled_from([None, "h100", "l4"]),
    ),
    max_size=6,
    unique_by=lambda n: (n.engine, n.name),
).map(tuple)
queues = st.lists(
    st.tuples(requests, st.sampled_from([0, 10, 20]), st.integers(0, 3)), max_size=10
).map(
    lambda found: tuple(
        waiting(f"r-{number}", resources, priority=priority, queued_at=at)
        for number, (resources, priority, at) in enumerate(found)
    )
)  # fmt: skip


def fill(cluster: tuple[Node, ...], queue: tuple[WaitingRun, ...]) -> tuple[ClusterSnapshot, list[PlacementDecision]]:
    """Some runs hold nodes already, the rest wait."""
    before = decide_placements(ClusterSnapshot(nodes=cluster, held={}, waiting=queue[: len(queue) // 2]))
    held = {decision.run_id: decision.placement for decision in before}
    shot = ClusterSnapshot(nodes=cluster, held=held, waiting=tuple(r for r in queue if r.run_id not in held))
    return shot, decide_placements(shot)


@given(clusters, queues)
def test_nothing_is_ever_handed_out_twice(cluster: tuple[Node, ...], queue: tuple[WaitingRun, ...]) -> None:
    shot, decisions = fill(cluster, queue)
    placements = [*shot.held.values(), *(decision.placement for decision in decisions)]
    for one in cluster:
        shares = [s for p in placements if p.engine == one.engine for s in p.shares if s.node == one.name]
        indices = [index for share in shares for index in share.gpu_indices]
        assert sum(share.cpus for share in shares) <= one.cpus + 1e-6
        assert sum(share.memory_bytes for share in shares) <= one.memory_bytes
        assert len(indices) == len(set(indices))
        assert set(indices) <= set(range(one.gpus))


def place_plainly(snapshot: ClusterSnapshot) -> list[PlacementDecision]:
    """The rules as they are said, with a look at every node for every run."""
    free = free_nodes(snapshot)
    decisions = []
    for run in in_order(snapshot.waiting):
        fitting: dict[str, list[FreeNode]] = {node.node.engine: [] for node in free}
        for node in free:
            if node.fits(run.resources, run.engines):
                fitting[node.node.engine].append(node)
        engine = next((name for name, nodes in fitting.items() if len(nodes) >= run.resources.nodes), None)
        if engine is None:
            free = [node for node in free if run.engines is not None and node.node.engine not in run.engines]
            continue
        fullest = sorted(fitting[engine], key=lambda n: (len(n.gpu_indices), n.cpus, n.memory_bytes, n.node.name))[
            : run.resources.nodes
        ]
        placement = Placement(engine=engine, shares=tuple(node.take(run.resources) for node in fullest))
        decisions.append(PlacementDecision(run_id=run.run_id, placement=placement))
    return decisions


@given(clusters, queues, st.lists(st.sampled_from([None, frozenset("x"), frozenset("y"), frozenset()]), max_size=10))
def test_the_place_is_the_one_that_a_look_at_every_node_finds(
    cluster: tuple[Node, ...], queue: tuple[WaitingRun, ...], engines: list[frozenset[str] | None]
) -> None:
    queue = tuple(replace(run, engines=only) for run, only in zip_longest(queue, engines) if run is not None)
    shot, decisions = fill(cluster, queue)
    assert decisions == place_plainly(shot)


@given(clusters)
def test_kinds_count_every_node_once(cluster: tuple[Node, ...]) -> None:
    kinds = kinds_of(cluster)
    assert sum(kind.count for kind in kinds) == len(cluster)
    assert len({replace(kind.node, name="") for kind in kinds}) == len(kinds)
    assert {kind.node for kind in kinds} <= set(cluster)


@given(clusters, queues)
def test_gangs_are_whole_and_get_what_they_asked_for(cluster: tuple[Node, ...], queue: tuple[WaitingRun, ...]) -> None:
    shot, decisions = fill(cluster, queue)
    wanted = {run.run_id: run.resources for run in shot.waiting}
    types = {(n.engine, n.name): n.gpu_type for n in cluster}
    for decision in decisions:
        asked, given_ = wanted[decision.run_id], decision.placement
        assert len(given_.shares) == len({share.node for share in given_.shares}) == asked.nodes
        for share in given_.shares:
            assert (share.cpus, share.memory_bytes, len(share.gpu_indices)) == (
                asked.cpus,
                asked.memory_bytes,
                asked.gpus,
            )
            if asked.gpus and asked.gpu_type:
                assert types[given_.engine, share.node] == asked.gpu_type


@given(clusters, queues)
def test_those_that_start_are_the_first_of_the_queue(cluster: tuple[Node, ...], queue: tuple[WaitingRun, ...]) -> None:
    shot, decisions = fill(cluster, queue)
    order = [run.run_id for run in in_order(shot.waiting)]
    assert started(decisions) == order[: len(decisions)]


@given(clusters, queues, st.randoms(use_true_random=False))
def test_the_decision_depends_on_the_snapshot_alone(
    cluster: tuple[Node, ...], queue: tuple[WaitingRun, ...], shuffler: random.Random
) -> None:
    shot, decisions = fill(cluster, queue)
    shuffled = list(shot.waiting)
    shuffler.shuffle(shuffled)
    again = ClusterSnapshot(nodes=cluster, held=shot.held, waiting=tuple(shuffled))
    assert decide_placements(again) == decisions


@given(clusters, requests)
def test_what_fits_an_idle_cluster_is_placed_and_the_rest_has_a_reason(
    cluster: tuple[Node, ...], wanted: Resources
) -> None:
    placed = decide_placements(ClusterSnapshot(nodes=cluster, held={}, waiting=(waiting("r", wanted),)))
    assert bool(placed) == (why_never(wanted, kinds_of(cluster)) is None)


def test_a_run_that_waits_for_one_engine_keeps_only_that_one() -> None:
    nodes = (node("a", engine="local"), node("b", engine="hpc", cpus=2))
    first = replace(waiting("first", Resources(cpus=8), queued_at=1), engines=frozenset({"hpc"}))
    behind = replace(waiting("behind", Resources(cpus=1), queued_at=2), engines=frozenset({"hpc"}))
    anywhere = waiting("anywhere", Resources(cpus=1), queued_at=3)
    [placed] = decide_placements(snapshot(first, behind, anywhere, nodes=nodes))
    assert (placed.run_id, placed.placement.engine) == ("anywhere", "local")


def test_a_run_goes_only_to_engines_it_may_use() -> None:
    nodes = (node("a", engine="local"), node("b", engine="hpc"))
    run = replace(waiting("run"), engines=frozenset({"hpc"}))
    [placed] = decide_placements(snapshot(run, nodes=nodes))
    assert placed.placement.engine == "hpc"
    nowhere = replace(waiting("run"), engines=frozenset())
    assert decide_placements(snapshot(nowhere, nodes=nodes)) == []
