"""HTTP bodies about the queue: who waits, in which order, and what projects have."""

from __future__ import annotations

from pydantic import Field

from windlass.wire.runs import StartEstimate, Wire


class QueueEntry(Wire):
    position: int | None = Field(description="from 1; null: it waits before it tries again")
    run_id: str
    name: str
    project: str
    user: str | None
    priority: str
    wants: str = Field(description="in words: `2 nodes of 8 h100`")
    queued_at: float = Field(description="since when it waits")
    start: StartEstimate | None = None
    obstacle: str = Field(description="none, room, turn, kept, soon, limit, user_limit, absent, no_nodes, or retry")
    reason: str = Field(description="in a few words; `windlass why` says more")


class ProjectShare(Wire):
    """What a project and those below it have. Shares are of the cluster: the largest of those of GPUs (TPUs with
    them), CPUs, memory."""

    name: str
    parent: str | None = None
    weight: float
    running: int
    waiting: int
    gpus: float
    tpus: float = 0.0
    cpus: float
    memory_bytes: float
    quota: dict[str, float] = Field(default_factory=dict, description="guaranteed")
    limit: dict[str, float] = Field(default_factory=dict, description="never more")
    share: float = Field(description="held now")
    lately: float = Field(description="held on average, what is old counting less")
    due: float = Field(description="what its weight makes its share among those that run or wait")


class QueueView(Wire):
    total: int = Field(description="runs that wait, of all projects")
    entries: list[QueueEntry]
    projects: list[ProjectShare]
