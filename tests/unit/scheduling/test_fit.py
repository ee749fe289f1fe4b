"""What can never run here is told at once, with what there is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from windlass.core.resources import Node, Resources
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.types import NodeState, Policy, Snapshot, Waiting
from windlass.scheduling.fit import kinds_of, why_never
from windlass.scheduling.wants import wants_of

GB = 10**9


def node(
    name: str = "a", *, engine: str = "local", cpus: float = 8, gpus: int = 0, gpu_type: str | None = None
) -> Node:
    return Node(engine=engine, name=name, cpus=cpus, memory_bytes=64 * GB, gpus=gpus, gpu_type=gpu_type)


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


def test_tpus_are_had_where_there_are_some() -> None:
    wanted = Resources(gpus=4, gpu_type="tpu:v5e")
    gpus = node("g", engine="hpc", gpus=8, gpu_type="h100")
    assert why_never(wanted, kinds_of([gpus])) == (
        "asks for TPUs, and no node that it may go to has any (engines: hpc)"
    )
    assert why_never(wanted, kinds_of([gpus, node("t", gpus=4, gpu_type="tpu:v4")])) == (
        "asks for 1 CPU + 4 TPU v5e on a node, and the largest node (t) has 8 CPU, 64.0 GB memory, 4 TPU v4"
    )
    assert why_never(wanted, kinds_of([node("t", gpus=4, gpu_type="tpu:v5e")])) is None
    assert why_never(replace(wanted, gpu_type="tpu:"), kinds_of([node("t", gpus=4, gpu_type="tpu:v4")])) is None
    assert why_never(Resources(gpus=4), kinds_of([node("t", gpus=4, gpu_type="tpu:v5e")])) == (
        "asks for 1 CPU + 4 GPU on a node, and the largest node (t) has 8 CPU, 64.0 GB memory, 4 TPU v5e"
    )


requests = st.builds(
    Resources,
    nodes=st.integers(1, 3),
    cpus=st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.5, 8.0]),
    memory_bytes=st.sampled_from([0, GB, 30 * GB, 64 * GB]),
    gpus=st.integers(0, 4),
    gpu_type=st.sampled_from([None, "h100", "l4", "tpu:", "tpu:v5e"]),
)
clusters = st.lists(
    st.builds(
        Node,
        engine=st.sampled_from(["x", "y"]),
        name=st.sampled_from("abcdef"),
        cpus=st.sampled_from([0.5, 4.0, 8.0]),
        memory_bytes=st.sampled_from([GB, 64 * GB]),
        gpus=st.integers(0, 4),
        gpu_type=st.sampled_from([None, "h100", "l4", "tpu:", "tpu:v5e"]),
    ),
    max_size=6,
    unique_by=lambda n: (n.engine, n.name),
).map(tuple)


@given(clusters)
def test_kinds_count_every_node_once(cluster: tuple[Node, ...]) -> None:
    kinds = kinds_of(cluster)
    assert sum(kind.count for kind in kinds) == len(cluster)
    assert len({replace(kind.node, name="") for kind in kinds}) == len(kinds)
    assert {kind.node for kind in kinds} <= set(cluster)


@given(clusters, requests)
def test_what_fits_an_idle_cluster_starts_and_the_rest_has_a_reason(
    cluster: tuple[Node, ...], wanted: Resources
) -> None:
    """The scheduler and submission must not differ: what was taken would wait for ever."""
    nodes = tuple(
        NodeState(
            engine=node.engine,
            name=node.name,
            cpus=node.cpus,
            memory_bytes=node.memory_bytes,
            gpus=node.gpus,
            gpu_type=node.gpu_type,
        )
        for node in cluster
    )
    run = Waiting(run_id="r", project="p", wants=wants_of(wanted, engines=None))
    found = decide(Snapshot(nodes=nodes, waiting=(run,)), Policy(), 0.0)
    assert bool(found.starts) == (why_never(wanted, kinds_of(cluster)) is None)
