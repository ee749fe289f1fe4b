"""What projects have used of the cluster, fading with time: in the database, so that fair share outlives servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Float, String, Table, select

from windlass.db.insertion import insert_or_replace
from windlass.db.metadata import Seconds, metadata
from windlass.scheduling.core.fairness import Amount, accrue, capacity, dominant_share
from windlass.scheduling.core.types import NodeState, Running

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


def decide_usage(
    known: Mapping[str, Used], nodes: Iterable[NodeState], running: Iterable[Running], *, half_life_s: float, now: float
) -> dict[str, Used]:
    """As of now, if what runs now has been running since it was written last, or since its own start."""
    whole = capacity(nodes)
    held: dict[str, list[tuple[float, Amount]]] = {}
    for run in running:
        count = len(run.placement.shares)
        amount = (run.want.gpus * count, run.want.cpus * count, float(run.want.memory_bytes * count))
        held.setdefault(run.project, []).append((run.started_at, amount))
    found = {}
    for project in known.keys() | held.keys():
        before = known.get(project, Used(usage=0.0, at=now))
        # Each for the time in which it ran; what this takes from the whole is small, as it is written often.
        passed = max(0.0, now - before.at)
        usage = accrue(before.usage, 0.0, passed, half_life_s)
        for started_at, amount in held.get(project, ()):
            seconds = min(passed, max(0.0, now - started_at))
            usage += accrue(0.0, dominant_share(amount, whole), seconds, half_life_s)
        if usage > _FORGOTTEN or project in held:
            found[project] = Used(usage=usage, at=now)
    return found


def load_usage(tx: Connection) -> dict[str, Used]:
    return {row.project: Used(usage=row.usage, at=row.at) for row in tx.execute(select(project_usage))}


def commit_usage(tx: Connection, found: Mapping[str, Used]) -> None:
    for project, used in sorted(found.items()):
        insert_or_replace(tx, project_usage, {"project": project, "usage": used.usage, "at": used.at})
