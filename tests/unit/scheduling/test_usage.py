"""What projects have used: all of it, whatever is short or out of reach, and less of what is long ago."""

from __future__ import annotations

import math

import pytest

from windlass.core.resources import NodeShare, Placement
from windlass.scheduling.core.types import NodeState
from windlass.scheduling.usage import Holding, Used, decide_usage

NODES = (NodeState(engine="x", name="a", cpus=8, memory_bytes=0, gpus=8),)
HALF_LIFE_S = 1e9  # nothing fades in these tests but where it is said


def held(gpus: int, started_at: float, ended_at: float | None = None, *, cpus: float = 0) -> Holding:
    share = NodeShare(node="a", cpus=cpus, memory_bytes=0, gpu_indices=tuple(range(gpus)))
    placement = Placement(engine="x", shares=(share,))
    return Holding(project="p", placement=placement, started_at=started_at, ended_at=ended_at)


def used(*holdings: Holding, known: dict[str, Used] | None = None, now: float = 100.0) -> dict[str, float]:
    found = decide_usage(known or {}, NODES, holdings, half_life_s=HALF_LIFE_S, now=now)
    return {project: each.usage for project, each in found.items()}


def test_what_came_and_went_between_two_looks_counts() -> None:
    known = {"p": Used(usage=5.0, at=70.0)}
    assert used(held(8, 75, 80), held(4, 60, 90), held(8, 95), known=known)["p"] == pytest.approx(5 + 5 + 10 + 5)


def test_nothing_counts_twice() -> None:
    known = {"p": Used(usage=0.0, at=70.0)}
    assert used(held(8, 10, 70), known=known)["p"] == 0.0
    first = decide_usage({}, NODES, [held(8, 0)], half_life_s=HALF_LIFE_S, now=50.0)
    assert used(held(8, 0), known=first)["p"] == pytest.approx(100)


def test_a_project_has_the_largest_of_its_shares_of_each_kind() -> None:
    assert used(held(8, 0, cpus=0), held(0, 0, cpus=8))["p"] == pytest.approx(100)


def test_what_is_long_ago_fades_and_is_forgotten() -> None:
    known = {"p": Used(usage=8.0, at=0.0)}
    found = decide_usage(known, NODES, [], half_life_s=100.0, now=100.0)
    assert found["p"].usage == pytest.approx(4.0)
    assert decide_usage(known, NODES, [], half_life_s=1.0, now=100.0) == {}
    steady = decide_usage({"p": Used(usage=0.0, at=0.0)}, NODES, [held(8, 0)], half_life_s=100.0, now=1e6)
    assert steady["p"].usage == pytest.approx(100.0 / math.log(2))
