"""Random clusters and queues. Strategies are made once: making one for each draw takes longer than what is tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from tests.unit.scheduling.core.clusters import GB
from tests.unit.scheduling.core.worlds import World
from windlass.scheduling.core.types import Health, NodeState, Policy, Project, Waiting, Want

PROJECTS = ("a", "b", "c")
Value = TypeVar("Value")


def _one_of(values: Sequence[Value]) -> st.SearchStrategy[Value]:
    return st.sampled_from(values)


def _numbered(nodes: list[NodeState]) -> list[NodeState]:
    return [replace(node, name=f"n{at}") for at, node in enumerate(nodes)]


def _want(least: int, more: int | None, rest: dict[str, Any]) -> Want:
    return Want(nodes=least, most_nodes=None if more is None else least + more, **rest)


def _arrival(work_s: float, is_limited: bool, rest: dict[str, Any]) -> tuple[Waiting, float]:
    return Waiting(run_id="", longest_s=work_s if is_limited else None, **rest), work_s


NODES = st.lists(
    st.builds(
        NodeState,
        engine=_one_of(["x", "x", "x", "y"]),
        name=st.just(""),
        cpus=_one_of([8, 16]),
        memory_bytes=st.just(64 * GB),
        gpus=_one_of([0, 2, 4, 4]),
        gpu_type=_one_of(["h100", "a100"]),
        topology=_one_of([(), ("z", "s1"), ("z", "s2"), ("w", "s1")]),
        price_per_hour=_one_of([1.0, 2.0]),
        spot=st.booleans(),
        health=_one_of([Health.SOUND, Health.SOUND, Health.SOUND, Health.DOUBTED, Health.CLOSED]),
    ),
    min_size=1,
    max_size=6,
).map(_numbered)
WANTS = st.builds(
    _want,
    least=_one_of([1, 1, 1, 2, 3]),
    more=_one_of([None, None, 2]),
    rest=st.fixed_dictionaries(
        {
            "gpus": _one_of([0, 0.25, 0.5, 1, 1, 2, 4]),
            "gpu_type": _one_of([None, None, "h100", "a100"]),
            "cpus": _one_of([0.5, 1, 4]),
            "memory_bytes": _one_of([0, 20 * GB]),
            "engines": _one_of([None, None, None, frozenset({"x"})]),
            "spot_ok": _one_of([True, True, False]),
        }
    ),
)
ARRIVALS = st.builds(
    _arrival,
    work_s=_one_of([50.0, 300.0, 2000.0]),
    is_limited=_one_of([False, False, True]),
    rest=st.fixed_dictionaries(
        {
            "project": _one_of(PROJECTS),
            "user": _one_of(["u", "v"]),
            "wants": st.lists(WANTS, min_size=1, max_size=2, unique=True).map(tuple),
            "priority": _one_of([0, 0, 0, 5]),
        }
    ),
)
POLICIES = st.builds(
    Policy,
    reservations=_one_of([0, 1, 4]),
    index_margin=_one_of([None, 2.0]),
    preempts=_one_of([True, True, False]),
    min_run_s=_one_of([0.0, 200.0]),
    ageing_s=_one_of([1000.0, 1e6]),
    starving_s=_one_of([3000.0, 1e6]),
    grow_after_s=_one_of([0.0, 500.0]),
    user_limit=_one_of([{}, {}, {"gpu": 4}]),
)
TREES = st.tuples(
    *(
        st.builds(
            Project,
            name=st.just(name),
            parent=_one_of([None, "top"]),
            weight=_one_of([1.0, 2.0]),
            quota=_one_of([{}, {}, {"gpu": 4}]),
            limit=_one_of([{}, {}, {"gpu": 6}]),
        )
        for name in PROJECTS
    ),
    st.builds(Project, name=st.just("top"), quota=_one_of([{}, {"gpu": 6}])),
).map(list)
WORLDS = st.builds(World, nodes=NODES, policy=POLICIES, projects=TREES)
HEALTH = st.sampled_from(list(Health))


def draw_arrival(data: st.DataObject, run_id: str) -> tuple[Waiting, float]:
    """A run, and the work that it has to do."""
    run, work_s = data.draw(ARRIVALS)
    return replace(run, run_id=run_id), work_s
