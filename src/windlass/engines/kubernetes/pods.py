"""What a pod's status says: `parse_pod`, pure. Kept small, since one is kept for every pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from windlass.engines.kubernetes import names
from windlass.engines.kubernetes.api import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a container ended."""

    exit_code: int
    reason: str
    message: str
    at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    name: str
    attempt_id: str
    node_rank: int
    phase: str  # Pending, Running, Succeeded, Failed, Unknown
    created_at: float
    node: str | None = None  # None: not scheduled
    target: str | None = None  # where it is meant to go, if that is one machine
    started_at: float | None = None
    grace_s: float = 30.0  # between the wish to end it and its end by force
    reason: str = ""  # of the pod as a whole: Evicted, NodeLost, Preempting ...
    message: str = ""
    unscheduled: str | None = None  # why the scheduler has not found it a place
    waiting: tuple[str, str] | None = None  # why its container does not start: reason and message
    ended: Ended | None = None
    deletion_at: float | None = None  # when it will be gone, once somebody has deleted it
    disruption: str | None = None  # why the cluster itself is about to end it

    @property
    def lacks_something(self) -> bool:
        """Whether its container waits for a Secret or its like, which is not there."""
        return self.waiting is not None and self.waiting[0] == "CreateContainerConfigError"


def parse_pod(seen: Json) -> PodState | None:
    """None for a pod that is no node of an attempt."""
    metadata, status = seen["metadata"], seen.get("status") or {}
    labels = metadata.get("labels") or {}
    rank = labels.get(names.NODE_RANK) or _job_index(metadata)
    if names.ATTEMPT not in labels or rank is None:
        return None
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    container: Json = next(iter(status.get("containerStatuses") or []), {})
    state = container.get("state") or {}
    return PodState(
        name=metadata["name"],
        attempt_id=labels[names.ATTEMPT],
        node_rank=int(rank),
        phase=status.get("phase", "Unknown"),
        created_at=parse_time(metadata["creationTimestamp"]) or 0.0,
        node=(seen.get("spec") or {}).get("nodeName"),
        target=(metadata.get("annotations") or {}).get(names.TARGET),
        started_at=parse_time(status.get("startTime")),
        grace_s=float((seen.get("spec") or {}).get("terminationGracePeriodSeconds", 30)),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        unscheduled=_unscheduled(conditions.get("PodScheduled")),
        waiting=_waiting(state.get("waiting")),
        ended=_ended(state.get("terminated")),
        deletion_at=parse_time(metadata.get("deletionTimestamp")),
        disruption=_disruption(conditions.get("DisruptionTarget")),
    )


def parse_time(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def _job_index(metadata: Mapping[str, Any]) -> str | None:
    """Pods of an Indexed Job: a label since 1.28, an annotation before."""
    for marks in (metadata.get("labels"), metadata.get("annotations")):
        if marks and names.JOB_INDEX in marks:
            return str(marks[names.JOB_INDEX])
    return None


def _unscheduled(condition: Mapping[str, Any] | None) -> str | None:
    if condition is None or condition["status"] != "False":
        return None
    return str(condition.get("message") or condition.get("reason") or "no reason is given")


def _waiting(state: Mapping[str, Any] | None) -> tuple[str, str] | None:
    return (state.get("reason", ""), state.get("message", "")) if state else None


def _ended(state: Mapping[str, Any] | None) -> Ended | None:
    if not state:
        return None
    return Ended(
        exit_code=int(state.get("exitCode", 0)),
        reason=state.get("reason", ""),
        message=state.get("message", ""),
        at=parse_time(state.get("finishedAt")),
    )


def _disruption(condition: Mapping[str, Any] | None) -> str | None:
    if condition is None or condition["status"] != "True":
        return None
    return str(condition.get("message") or condition.get("reason") or "the cluster says no more")
