"""What Slurm's word on a job means for the nodes of its attempt. Pure.

What a node wrote into its folder counts before what Slurm says of its job, and Slurm's silence means nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from windlass.agent.remedy import NODE
from windlass.agent.watch import FROM_OUTSIDE
from windlass.core.exits import ExitReason
from windlass.engines.slurm.tables import JobLife, JobRow, NodeRow, PastJob

_REASONS = {
    "PREEMPTED": ExitReason.PREEMPTED,
    "OUT_OF_MEMORY": ExitReason.OOM,
    "TIMEOUT": ExitReason.TIMEOUT,
    "DEADLINE": ExitReason.TIMEOUT,
}
_STOPPED = 128 + signal.SIGTERM  # as a shell says of a process that ended because of it
_SAYINGS = {
    "PREEMPTED": "Slurm preempted its job",
    "OUT_OF_MEMORY": "Slurm ended its job for memory",
    "TIMEOUT": "its job reached Slurm's time limit",
    "DEADLINE": "its job missed its deadline in Slurm",
    "BOOT_FAIL": "a node of its job could not be booted",
    "CANCELLED": "its job was cancelled in Slurm by somebody else",
}


class Standing(StrEnum):
    UNKNOWN = "unknown"  # Slurm cannot be asked, or says what is not understood
    UNSUBMITTED = "unsubmitted"  # Slurm answers, and has no job by this name
    WAITING = "waiting"
    ALIVE = "alive"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """What there is in Slurm for one attempt. Usually one job; two after a submission of unknown fate."""

    standing: Standing
    detail: str | None = None  # for people
    reason: ExitReason = ExitReason.LOST  # once it is over: why, should a node itself have left no outcome
    message: str = ""
    state: str = ""
    down: frozenset[str] = frozenset()  # the nodes that failed, if that ended it, or that it waits for in vain
    lives: Mapping[str, int] | None = None  # per job that is not over, how often Slurm has started it again

    @property
    def is_hopeless(self) -> bool:
        """Its nodes were chosen before it was submitted, so it waits until those that are down come back."""
        return self.standing is Standing.WAITING and bool(self.down)

    @property
    def is_unexplained(self) -> bool:
        return self.standing is Standing.OVER and self.state != "NODE_FAIL" and self.state not in _SAYINGS


def view_jobs(
    rows: Sequence[JobRow], *, past: PastJob | None, submitted_as: str | None, nodes: Sequence[NodeRow]
) -> JobView:
    """`nodes` are those of the attempt, as far as known."""
    going = [row for row in rows if row.life is not JobLife.OVER]
    for row in going:
        lives = {row.job_id: row.restarts for row in going}
        if row.life is JobLife.ALIVE:
            return JobView(standing=Standing.ALIVE, lives=lives, state=row.state)
        if row.life is JobLife.UNKNOWN:
            return JobView(standing=Standing.UNKNOWN, detail=f"job {row.job_id} is {row.state} in Slurm", lives=lives)
    if going:
        row = going[0]
        why = row.reason or row.state.lower().replace("_", " ")
        down = [node.name for node in nodes if node.is_gone]
        return JobView(
            standing=Standing.WAITING,
            detail=f"pending in Slurm: {why}",
            message=f"node {', '.join(down)} went down before its job began (job {row.job_id}: {why})" if down else "",
            state=row.state,
            down=frozenset(down),
            lives=lives,
        )
    if rows:
        newest = max(rows, key=lambda row: (row.restarts, int(row.job_id) if row.job_id.isdigit() else 0))
        return _over(newest.job_id, newest.state, newest.reason, nodes)
    if past is not None:
        return _over(past.job_id, past.state, "", nodes)
    if submitted_as is not None:
        return JobView(standing=Standing.OVER, message=f"Slurm does not know its job {submitted_as} any more")
    return JobView(standing=Standing.UNSUBMITTED)


def _over(job_id: str, state: str, reason: str, nodes: Sequence[NodeRow]) -> JobView:
    down: list[str] = []
    if state == "NODE_FAIL":
        down = [node.name for node in nodes if node.is_down]
        which = f"node {', '.join(down)}" if down else f"one of its nodes ({', '.join(node.name for node in nodes)})"
        saying = f"{which} failed"
    else:
        saying = _SAYINGS.get(state, "its job ended in Slurm and left no outcome")
    said = f"{state}, {reason}" if reason else state
    return JobView(
        standing=Standing.OVER,
        reason=_REASONS.get(state, ExitReason.LOST),
        message=f"{saying} (job {job_id}: {said})",
        state=state,
        down=frozenset(down),
    )


def is_past_life(status: Mapping[str, Any], view: JobView) -> bool:
    """Whether the job that this supervisor belonged to has been started again since, or waits to be: nothing of that
    life is left, though the job goes on."""
    job = status.get("job") or {}
    restarts = (view.lives or {}).get(str(job.get("job_id")))
    return restarts is not None and restarts > int(job.get("restarts", 0))


def explain_end(outcome: Mapping[str, Any], view: JobView, node_names: Sequence[str]) -> Mapping[str, Any]:
    """A supervisor that was told to stop by nobody we know takes it for a preemption. Slurm knows better."""
    if view.standing is not Standing.OVER or view.is_unexplained:
        return outcome
    message = f"{view.message}; {outcome['message']}"
    return {**outcome, "reason": view.reason.value, "message": message, **blame_node(view.down, node_names)}


def blame_node(down: Collection[str], node_names: Sequence[str]) -> dict[str, Any]:
    """What the outcome of every node says more of a job that ended because of some: which is to blame."""
    ranks = [rank for rank, name in enumerate(node_names) if name in down]
    return {"trouble": NODE, "blames": ranks[0]} if ranks else {}


def needs_explanation(outcome: Mapping[str, Any], wish: Mapping[str, Any] | None) -> bool:
    """One that was told to stop by nobody we know; or whose ranks ended as those do that heed SIGTERM, which may have
    come to a rank of another node: they agree on the step that is their last."""
    if wish is not None:
        return False
    told = str(outcome["message"]).startswith(FROM_OUTSIDE) and outcome["reason"] == ExitReason.PREEMPTED
    return told or (outcome["reason"] == ExitReason.EXIT_CODE and outcome.get("exit_code") == _STOPPED)
