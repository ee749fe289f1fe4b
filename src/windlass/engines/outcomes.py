"""From what the nodes of an attempt left behind to what became of the attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.agent.remedy import NODE
from windlass.core.exits import Exit, ExitReason
from windlass.engines.contract import StopKind

_STOPPED = (ExitReason.CANCELLED, ExitReason.PREEMPTED)
_HIGHEST = 1_000_000  # generation
_SUMMED = ("cpu_percent", "rss_bytes", "peak_rss_bytes", "cpu_seconds")  # of samples, over the nodes of a gang
_NO_FAILURE = (ExitReason.COMPLETED, *_STOPPED)


def is_failure(outcome: Mapping[str, Any]) -> bool:
    return outcome["reason"] not in _NO_FAILURE


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRest:
    """The nodes of an attempt that are left should stop, and end so."""

    kind: StopKind
    reason: str


def decide_rest(outcomes: Sequence[Mapping[str, Any] | None], states: Sequence[str | None]) -> StopRest | None:
    """Whether nodes that go on are needed no more. Per node: its outcome, if there is one, and what its status says."""
    failed = next((found for found in outcomes if found is not None and is_failure(found)), None)
    if failed is not None:
        return StopRest(kind=StopKind.CANCELLED, reason=f"stopped because another node failed: {failed['message']}")
    if None not in outcomes:
        return None
    left = [state for found, state in zip(outcomes, states, strict=True) if found is None]
    if any(state != "serving" for state in left):
        return None
    # Those that serve would go on for ever: whom they serve has ended.
    stopped = next((found for found in outcomes if found is not None and found["reason"] in _STOPPED), None)
    if stopped is None:
        return StopRest(kind=StopKind.COMPLETED, reason="")
    return StopRest(kind=StopKind(stopped["reason"]), reason=f"stopped with another node: {stopped['message']}")


def exit_of(outcomes: Sequence[Mapping[str, Any]]) -> Exit:
    """`outcomes` of all nodes, in the order of their ranks. The first failure explains the attempt; what other nodes
    ended with follows from it. So it does if one node was preempted alone: the others fail for want of it."""
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
        traceback=cause.get("traceback"),
        trouble=cause.get("trouble"),
        node_rank=_node_to_blame(cause, outcomes) if failures else None,
    )


def _node_to_blame(cause: Mapping[str, Any], outcomes: Sequence[Mapping[str, Any]]) -> int | None:
    """None where several were lost together, and nothing tells because of which. A cluster may know better which."""
    if isinstance(cause.get("blames"), int):
        return int(cause["blames"])
    is_lost = cause["reason"] == ExitReason.LOST and cause.get("trouble") != NODE
    if is_lost and sum(outcome["reason"] == ExitReason.LOST for outcome in outcomes) > 1:
        return None
    return next(rank for rank, outcome in enumerate(outcomes) if outcome is cause)


def _failed_at(outcome: Mapping[str, Any]) -> tuple[bool, bool, bool, float]:
    """A lost node is noticed late, after its peers have failed for want of it: it comes before them. So do ranks with
    trouble of their own before those that miss a peer, however quick these were to end."""
    ends = {end["rank"]: end["ended_at"] for end in outcome["ranks"]}
    own_trouble = not outcome.get("about_peers", False)
    at = ends.get(outcome["rank"], outcome["ended_at"])
    return outcome["reason"] != ExitReason.LOST, outcome.get("trouble") != NODE, not own_trouble, at


def merge_recoveries(told: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[Mapping[str, Any], ...]:
    """What the nodes have on record, one entry a generation: the first node of a gang keeps the record."""
    found = {entry["generation"]: entry for entries in reversed(told) for entry in entries if _is_recovery(entry)}
    return tuple(found[generation] for generation in sorted(found))


def _is_recovery(entry: object) -> bool:
    """Programs can write into the folder of their node: what is no entry is none."""
    return isinstance(entry, Mapping) and type(found := entry.get("generation")) is int and 0 < found < _HIGHEST


def merge_usage(samples: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    if len(samples) <= 1:
        return samples[0] if samples else None
    samples = [sample for sample in samples if _is_sample(sample)]
    if not samples:
        return None
    merged: dict[str, Any] = {"at": max(sample["at"] for sample in samples)}
    for name in _SUMMED:
        merged[name] = sum(sample[name] for sample in samples)
    for name in ("gpus", "ranks"):
        merged[name] = [item for sample in samples for item in _rows(sample, name)]
    if nodes := [item for sample in samples for item in _rows(sample, "nodes")]:
        merged["nodes"] = nodes
    if printed := [sample["printed"] for sample in samples if sample.get("printed")]:
        merged["printed"] = printed[0]  # of the node with the first rank
    told = [sample["progress"] for sample in samples if _is_progress(sample.get("progress"))]
    if told:
        merged["progress"] = max(told, key=lambda progress: int(progress["step"]))
    return merged


def _is_sample(sample: Mapping[str, Any]) -> bool:
    return all(isinstance(sample.get(name), int | float) for name in ("at", *_SUMMED))


def _is_progress(found: object) -> bool:
    return isinstance(found, Mapping) and isinstance(found.get("step"), int)


def _rows(sample: Mapping[str, Any], name: str) -> list[Any]:
    """Programs can write into the folder of their node: what is no list is none."""
    found = sample.get(name)
    return found if isinstance(found, list) else []
