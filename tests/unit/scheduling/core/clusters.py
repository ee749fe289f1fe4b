"""Small clusters for tests of the scheduler's core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.core.resources import NodeShare, Placement
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.types import NodeState, Policy, Project, Running, Snapshot, Waiting, Want

GB = 10**9


def node(name: str, *, gpus: int = 8, cpus: float = 64, engine: str = "x", **more: Any) -> NodeState:
    return NodeState(engine=engine, name=name, cpus=cpus, memory_bytes=64 * GB, gpus=gpus, **more)


def want(*, gpus: float = 1, **more: Any) -> Want:
    return Want(gpus=gpus, **more)


def waiting(run_id: str, *wants: Want, project: str = "p", **more: Any) -> Waiting:
    return Waiting(run_id=run_id, project=project, wants=wants or (want(),), **more)


def share(node: str, *, gpus: int = 0, first: int = 0, part: float = 1.0, cpus: float = 1.0) -> NodeShare:
    return NodeShare(node=node, cpus=cpus, memory_bytes=0, gpu_indices=tuple(range(first, first + gpus)), gpu_part=part)


def running(run_id: str, *shares: NodeShare, project: str = "p", wants: Want | None = None, **more: Any) -> Running:
    found = wants or Want(gpus=len(shares[0].gpu_indices), cpus=shares[0].cpus, nodes=len(shares))
    return Running(run_id=run_id, project=project, want=found, placement=Placement(engine="x", shares=shares), **more)


def snapshot(
    waiting: Sequence[Waiting],
    nodes: Sequence[NodeState],
    *,
    running: Sequence[Running] = (),
    projects: Sequence[Project] = (),
) -> Snapshot:
    return Snapshot(nodes=tuple(nodes), running=tuple(running), waiting=tuple(waiting), projects=tuple(projects))


def policy(**more: Any) -> Policy:
    return Policy(**more)


def started(found: Snapshot, *, now: float = 0.0, **more: Any) -> list[str]:
    return [start.run_id for start in decide(found, policy(**more), now).starts]
