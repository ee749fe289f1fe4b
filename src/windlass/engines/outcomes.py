"""From what the nodes of an attempt left behind to what became of the attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.core.exits import Exit, ExitReason

_STOPPED = (ExitReason.CANCELLED, ExitReason.PREEMPTED)
_NO_FAILURE = (ExitReason.COMPLETED, *_STOPPED)


def is_failure(outcome: Mapping[str, Any]) -> bool:
    return outcome["reason"] not in _NO_FAILURE


def exit_of(outcomes: Sequence[Mapping[str, Any]]) -> Exit:
    """The first failure explains the attempt; what the other nodes ended with follows from it. So it does if one node
    was preempted alone: the others fail for want of it."""
    failures = sorted(filter(is_failure, outcomes), key=_failed_at)
    preempted = [outcome for outcome in outcomes if outcome["reason"] == ExitReason.PREEMPTED]
    if preempted and not any(outcome["reason"] == ExitReason.LOST for outcome in failures):
        failures = preempted
    stopped = [outcome for kind in _STOPPED for outcome in outcomes if outcome["reason"] == kind]
    cause = (failures or stopped or outcomes)[0]
    return Exit(
        reason=ExitReason(cause["reason"]),
        exit_code=cause["exit_code"],
        signal=cause["signal"],
        rank=cause["rank"],
        message=cause["message"],
        fingerprint=cause["fingerprint"],
    )


def _failed_at(outcome: Mapping[str, Any]) -> tuple[bool, float]:
    """A lost node is noticed late, after its peers have failed for want of it: it comes before them."""
    ends = {end["rank"]: end["ended_at"] for end in outcome["ranks"]}
    return outcome["reason"] != ExitReason.LOST, ends.get(outcome["rank"], outcome["ended_at"])


def merge_usage(samples: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    if len(samples) <= 1:
        return samples[0] if samples else None
    merged: dict[str, Any] = {"at": max(sample["at"] for sample in samples)}
    for name in ("cpu_percent", "rss_bytes", "peak_rss_bytes", "cpu_seconds"):
        merged[name] = sum(sample[name] for sample in samples)
    for name in ("gpus", "ranks"):
        merged[name] = [item for sample in samples for item in sample[name]]
    return merged
