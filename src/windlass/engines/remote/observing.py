"""From what nodes report and what their cluster says of them to what became of the attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from windlass.agent import outcome
from windlass.core.exits import ExitReason
from windlass.engines.contract import NodeReport, Notice, Observation, Phase
from windlass.engines.outcomes import StopRest, decide_rest, exit_of, merge_recoveries, merge_usage


class Life(StrEnum):
    WAITING = "waiting"  # asked for; its process has not started
    ALIVE = "alive"
    GONE = "gone"  # the process that carries the agent is over, for certain
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLife:
    """A node of an attempt as its cluster sees it: an actor, a pod."""

    life: Life
    at: float | None = None  # since when, if that is known
    reason: ExitReason = ExitReason.LOST  # why it is gone, should the node itself have left no outcome
    message: str = ""
    notice: Notice | None = None
    trouble: str | None = None  # what kind it is, where the machine is to blame: see `agent.remedy`


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    observation: Observation
    stop_rest: StopRest | None = None  # what the nodes that are left should be told; None: nothing


def stored_logs(attempt_id: str, nodes: int) -> tuple[str, ...]:
    return tuple(f"stored://{attempt_id}/{rank}" for rank in range(nodes))


def decide_observation(
    attempt_id: str, reports: Sequence[NodeReport], lives: Sequence[NodeLife], *, now: float
) -> Verdict:
    """`reports` and `lives`: one per node rank. What a node says of itself counts before what is said of it."""
    outcomes = [_outcome(report, life, now) for report, life in zip(reports, lives, strict=True)]
    known = [found for found in outcomes if found is not None]
    ended = len(known) == len(outcomes)
    phase = Phase.ENDED if ended else _phase(reports, lives)
    starts = [report.status["started_at"] for report in reports if report.status is not None]
    observation = Observation(
        phase=phase,
        started_at=min((at for at in starts if at is not None), default=None),
        ended_at=max(found["ended_at"] for found in known) if ended else None,
        exit=exit_of(known) if ended else None,
        log_dirs=stored_logs(attempt_id, len(reports)),
        usage=merge_usage([report.usage for report in reports if report.usage is not None]),
        environment=next((report.environment for report in reports if report.environment is not None), None),
        notice=None if ended else _notice(reports, lives, known),
        detail=None if ended else _detail(lives),
        recoveries=merge_recoveries([(report.status or {}).get("recoveries") or () for report in reports]),
    )
    states = [report.status["state"] if report.status is not None else None for report in reports]
    return Verdict(observation=observation, stop_rest=None if ended else decide_rest(outcomes, states))


def _outcome(report: NodeReport, life: NodeLife, now: float) -> Mapping[str, Any] | None:
    if report.outcome is not None:
        return report.outcome
    if life.life is not Life.GONE:
        return None
    started_at = report.status["started_at"] if report.status is not None else None
    message = life.message or "its process is gone and left no outcome"
    return outcome.summary(
        reason=life.reason.value,
        message=message,
        started_at=started_at,
        ended_at=life.at or report.reported_at or now,
        trouble=life.trouble,
    )


def _phase(reports: Sequence[NodeReport], lives: Sequence[NodeLife]) -> Phase:
    if any(life.life is Life.UNKNOWN and report.outcome is None for report, life in zip(reports, lives, strict=True)):
        return Phase.UNKNOWN
    started = [report.outcome is not None or _is_running(report.status) for report in reports]
    return Phase.RUNNING if all(started) else Phase.STARTING


def _is_running(status: Mapping[str, Any] | None) -> bool:
    return status is not None and status["state"] != "starting"


def _notice(
    reports: Sequence[NodeReport], lives: Sequence[NodeLife], ended: Sequence[Mapping[str, Any]]
) -> Notice | None:
    """Also for a node that was preempted already, before anybody was warned: the others cannot go on without it."""
    preempted = [Notice(message=found["message"]) for found in ended if found["reason"] == ExitReason.PREEMPTED]
    notices = [*(report.notice for report in reports), *(life.notice for life in lives), *preempted]
    return min(filter(None, notices), key=lambda notice: notice.deadline or float("inf"), default=None)


def _detail(lives: Sequence[NodeLife]) -> str | None:
    return next((life.message for life in lives if life.life in (Life.WAITING, Life.UNKNOWN) and life.message), None)
