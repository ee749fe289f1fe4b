"""From what is known of each node to what is known of the attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.engines.contract import Notice, Observation, Phase
from windlass.engines.outcomes import StopRest, decide_rest, exit_of, merge_recoveries, merge_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLook:
    """One node at one moment. With an outcome, its phase is ENDED."""

    log_dir: str
    phase: Phase
    outcome: Mapping[str, Any] | None = None
    started_at: float | None = None
    usage: Mapping[str, Any] | None = None
    state: str | None = None  # what its status says
    recoveries: Sequence[Mapping[str, Any]] = ()


def told_recoveries(status: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """Programs can write into the folder of their node: what is no list is none."""
    found = (status or {}).get("recoveries")
    return found if isinstance(found, list) else ()


def decide_phase(looks: Sequence[NodeLook]) -> Phase:
    """What is true of one node is true of the gang: it runs only if all of it does, and what is unknown stays so."""
    phases = {look.phase for look in looks}
    if phases == {Phase.ENDED}:
        return Phase.ENDED
    for phase in (Phase.ABSENT, Phase.UNKNOWN, Phase.STARTING):
        if phase in phases:
            return phase
    return Phase.RUNNING


def decide_stop(looks: Sequence[NodeLook]) -> StopRest | None:
    return decide_rest([look.outcome for look in looks], [look.state for look in looks])


def observe(
    looks: Sequence[NodeLook],
    *,
    environment: Mapping[str, Any] | None = None,
    notice: Notice | None = None,
    detail: str | None = None,
) -> Observation:
    phase = decide_phase(looks)
    outcomes = [look.outcome for look in looks if look.outcome is not None]
    ended = phase is Phase.ENDED
    return Observation(
        phase=phase,
        started_at=min((look.started_at for look in looks if look.started_at is not None), default=None),
        ended_at=max(outcome["ended_at"] for outcome in outcomes) if ended else None,
        exit=exit_of(outcomes) if ended else None,
        log_dirs=tuple(look.log_dir for look in looks),
        usage=merge_usage([look.usage for look in looks if look.usage is not None]),
        environment=environment,
        notice=notice,
        detail=None if ended else detail,
        recoveries=merge_recoveries([look.recoveries for look in looks]),
    )
