"""Snapshots of large clusters for single passes of the scheduler: full ones with long queues, and empty ones."""

from __future__ import annotations

import random

from windlass.core.resources import NodeShare, Placement
from windlass.scheduling.core.learned import History, Lasted
from windlass.scheduling.core.types import NodeState, Project, Running, Snapshot, Waiting, Want

PROJECTS = tuple(f"project-{number}" for number in range(20))
_SIZES = (1, 1, 1, 2, 4, 8)
_NOW = 1_000_000.0
_PER_NODE = 8
# Runs that want the same share one tuple, as the controller has them do.
_SINGLE = {gpus: (Want(gpus=gpus, cpus=float(gpus)),) for gpus in {*_SIZES}}
_GANG = (Want(gpus=_PER_NODE, cpus=8.0, nodes=4),)


def crowded_snapshot(*, queued: int, gpus: int, running: int) -> tuple[Snapshot, float]:
    """Every GPU is taken by gangs of one node or two; who waits has begun already or not, and is of some project."""
    source = random.Random(0)
    nodes = _nodes(gpus)
    gangs = []
    free = [node.name for node in nodes]
    while free:
        count = min(len(free), 2 if len(free) > running - len(gangs) else 1)
        names, free = free[:count], free[count:]
        shares = tuple(
            NodeShare(node=name, cpus=8.0, memory_bytes=0, gpu_indices=tuple(range(_PER_NODE))) for name in names
        )
        gangs.append(
            Running(
                run_id=f"going-{len(gangs)}",
                project=source.choice(PROJECTS),
                want=Want(gpus=_PER_NODE, cpus=8.0, nodes=count),
                placement=Placement(engine="e", shares=shares),
                started_at=_NOW - source.expovariate(1 / 20_000),
                served=source.choice((0.0, source.expovariate(1e-6))),
                saves_on_notice=True,
            )
        )
    waiting = tuple(_waiting(number, source) for number in range(queued))
    return _snapshot(nodes, tuple(gangs), waiting), _NOW


def empty_snapshot(*, queued: int, gpus: int, seed: int) -> tuple[Snapshot, float]:
    source = random.Random(seed)
    return _snapshot(_nodes(gpus), (), tuple(_waiting(number, source) for number in range(queued))), _NOW


def _nodes(gpus: int) -> tuple[NodeState, ...]:
    return tuple(
        NodeState(
            engine="e",
            name=f"node-{number}",
            cpus=96.0,
            memory_bytes=1 << 40,
            gpus=_PER_NODE,
            gpu_type="h100",
            topology=(f"rack-{number // 16}",),
        )
        for number in range(max(1, gpus // _PER_NODE))
    )


def _waiting(number: int, source: random.Random) -> Waiting:
    queued_at = _NOW - source.uniform(0, 40_000)
    return Waiting(
        run_id=f"run-{number}",
        project=source.choice(PROJECTS),
        wants=_GANG if source.random() < 0.02 else _SINGLE[source.choice(_SIZES)],
        submitted_at=queued_at,
        queued_at=queued_at,
        served=source.choice((0.0, 0.0, 0.0, source.expovariate(1e-4))),
    )


def _snapshot(nodes: tuple[NodeState, ...], running: tuple[Running, ...], waiting: tuple[Waiting, ...]) -> Snapshot:
    source = random.Random(1)
    history = History()
    for _ in range(2_000):
        seconds = source.lognormvariate(8, 2)
        history.add(Lasted(gpus=source.choice(_SIZES), project=source.choice(PROJECTS), seconds=seconds))
    projects = tuple(Project(name=name, weight=1.0 + number % 3, usage_at=_NOW) for number, name in enumerate(PROJECTS))
    return Snapshot(nodes=nodes, running=running, waiting=waiting, projects=projects, learned=history.learn())
