"""What projects have used of the cluster, fading with time: in the database, so that fair share outlives servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Float, String, Table, select

from windlass.core.resources import Placement
from windlass.db.insertion import insert_or_replace
from windlass.db.metadata import Seconds, metadata
from windlass.scheduling.core.fairness import Amount, accrue, capacity, dominant_share
from windlass.scheduling.core.types import NodeState

project_usage = Table(
    "project_usage",
    metadata,
    Column("project", String(64), primary_key=True),
    Column("usage", Float(53), nullable=False),  # dominant-share seconds
    Column("at", Seconds, nullable=False),
)

_FORGOTTEN = 1e-3  # dominant-share seconds: a thousandth of a second of the whole cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    usage: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What an attempt holds, or held."""

    project: str
    placement: Placement
    started_at: float
    ended_at: float | None = None


def decide_usage(
    known: Mapping[str, Used],
    nodes: Iterable[NodeState],
    holdings: Iterable[Holding],
    *,
    half_life_s: float,
    now: float,
) -> dict[str, Used]:
    """As of now. `holdings`: all that live, and all that ended since usage was written last."""
    whole = capacity(nodes)
    held: dict[str, Amount] = {}  # by project, over the time since then: GPU-seconds, CPU-seconds, byte-seconds
    for each in holdings:
        since = max(each.started_at, known[each.project].at if each.project in known else each.started_at)
        seconds = max(0.0, (now if each.ended_at is None else each.ended_at) - since)
        gpus, cpus, memory = held.get(each.project, (0.0, 0.0, 0.0))
        for share in each.placement.shares:
            gpus += seconds * len(share.gpu_indices) * share.gpu_part
            cpus += seconds * share.cpus
            memory += seconds * share.memory_bytes
        held[each.project] = (gpus, cpus, memory)
    found = {}
    for project in known.keys() | held.keys():
        before = known.get(project, Used(usage=0.0, at=now))
        passed = max(0.0, now - before.at)
        share_s = dominant_share(held.get(project, (0.0, 0.0, 0.0)), whole)
        if passed > 0:
            usage = accrue(before.usage, share_s / passed, passed, half_life_s)
        else:
            usage = before.usage + share_s
        if usage > _FORGOTTEN or project in held:
            found[project] = Used(usage=usage, at=now)
    return found


def load_usage(tx: Connection) -> dict[str, Used]:
    return {row.project: Used(usage=row.usage, at=row.at) for row in tx.execute(select(project_usage))}


def commit_usage(tx: Connection, found: Mapping[str, Used]) -> None:
    for project, used in sorted(found.items()):
        insert_or_replace(tx, project_usage, {"project": project, "usage": used.usage, "at": used.at})
