"""What has become of a node of an attempt, from its pod, the pod's machine and what the node itself reported. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.agent.remedy import NODE
from windlass.core.exits import ExitReason
from windlass.engines.contract import NodeReport, Notice
from windlass.engines.kubernetes.nodes import NodeState
from windlass.engines.kubernetes.pods import PodState
from windlass.engines.remote.observing import Life, NodeLife
from windlass.engines.remote.silence import patience_s

# A node heard of this recently lives, whatever its cluster says or cannot say. At least so long: see `patience_s`.
HEARD_LATELY_S = 20.0
# Waiting that no patience ends.
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull")
_NOT_STARTING = (
    "ErrImagePull",
    "ImagePullBackOff",
    "RegistryUnavailable",
    "ImageInspectError",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    *_HOPELESS,
)
# The pod's own reasons by which a cluster says that it took the pod away.
_TAKEN_AWAY = ("Evicted", "Preempting", "Preempted", "Shutdown", "Terminated", "NodeShutdown")
# The machine's own: the pod was bound to it and does not fit after all.
_TURNED_AWAY = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "NodePorts")
_SIGNALLED = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long, in seconds, a pod may wait for a machine and for its container."""

    schedule_s: float
    image_s: float


def decide_life(
    report: NodeReport,
    pod: PodState | None,
    last_seen: PodState | None,
    machine: NodeState | None,
    patience: Patience,
    *,
    now: float,
) -> NodeLife:
    """`pod` as it is now, or None if there is none; `last_seen` as a pod that is gone was seen last; `machine` where
    either is or was. Not for a node whose pod was never made: that is the caller's to tell."""
    if pod is None:
        return _vanished(last_seen, machine, now)
    if pod.phase in ("Succeeded", "Failed"):
        return _ended(pod, report)
    on_silent_machine = pod.node is not None and machine is not None and machine.ready is None
    if on_silent_machine and not heard_lately(report, now):
        assert machine is not None
        return _on_silent_machine(pod, machine)
    if pod.ended is not None and report.reported_at is None:
        return _ended(pod, report)
    if pod.phase == "Running":
        return NodeLife(life=Life.ALIVE, at=pod.started_at, notice=_notice(pod, machine))
    return _waiting(pod, machine, patience, now)


def decide_life_unseen(report: NodeReport, problem: str, *, now: float) -> NodeLife:
    """While the API server is away: only what the node itself says is known."""
    if heard_lately(report, now):
        return NodeLife(life=Life.ALIVE)
    return NodeLife(life=Life.UNKNOWN, message=f"the cluster cannot be asked: {problem}")


def heard_lately(report: NodeReport, now: float) -> bool:
    return report.reported_at is not None and now - report.reported_at < patience_s(report, HEARD_LATELY_S)


def _vanished(last_seen: PodState | None, machine: NodeState | None, now: float) -> NodeLife:
    """The pod is gone, and the node told no outcome before. A deletion that a living machine has carried out is an
    eviction, by whoever it was; one on a machine that is not there is the end of the machine."""
    if last_seen is None:
        return NodeLife(life=Life.GONE, at=now, message="its pod was deleted")
    if last_seen.node is not None and (machine is None or machine.ready is None or last_seen.reason == "NodeLost"):
        return NodeLife(life=Life.GONE, at=now, message=f"node {last_seen.node} is lost", trouble=NODE)
    why = last_seen.disruption or last_seen.message or last_seen.reason or "somebody deleted it"
    message = f"pod {last_seen.name} was taken away from {last_seen.node or 'the queue'}: {why}"
    return NodeLife(life=Life.GONE, at=now, reason=ExitReason.PREEMPTED, message=message)


def _ended(pod: PodState, report: NodeReport) -> NodeLife:
    """The pod is over and the node has told no outcome: the cluster's word is all there is."""
    reason, message = _cause(pod, report)
    at = pod.ended.at if pod.ended else None
    machines_doing = pod.reason == "NodeLost" or pod.reason.startswith(_TURNED_AWAY)
    trouble = NODE if machines_doing and reason is ExitReason.LOST else None
    return NodeLife(life=Life.GONE, at=at, reason=reason, message=message, trouble=trouble)


def _cause(pod: PodState, report: NodeReport) -> tuple[ExitReason, str]:
    if pod.disruption or pod.reason in _TAKEN_AWAY:
        why = pod.disruption or pod.message or pod.reason
        return ExitReason.PREEMPTED, f"pod {pod.name} was taken away from node {pod.node}: {why}"
    if pod.reason == "NodeLost":
        return ExitReason.LOST, f"node {pod.node} is lost"
    if pod.reason.startswith(_TURNED_AWAY):
        return ExitReason.LOST, f"node {pod.node} turned pod {pod.name} away: {pod.message or pod.reason}"
    if pod.ended is None:
        why = pod.message or pod.reason or "no reason is given"
        reason = ExitReason.LOST if report.reported_at else ExitReason.LAUNCH_FAILED
        return reason, f"pod {pod.name} failed: {why}"
    if pod.ended.reason == "OOMKilled":
        return ExitReason.OOM, f"the container on node {pod.node} went over its memory limit"
    code = pod.ended.exit_code
    how = f"was killed by signal {code - _SIGNALLED}" if code > _SIGNALLED else f"exited with {code}"
    tail = f": {pod.ended.message}" if pod.ended.message else ""
    if report.reported_at is None:
        return ExitReason.LAUNCH_FAILED, f"the container on node {pod.node} {how} before it reached the server{tail}"
    return ExitReason.LOST, f"the container on node {pod.node} {how} and left no outcome{tail}"


def _on_silent_machine(pod: PodState, machine: NodeState) -> NodeLife:
    """Silent is not gone. The cluster decides that, after the pod's own tolerance, by deleting the pod."""
    if pod.deletion_at is not None:
        message = f"node {machine.name} is lost"
        return NodeLife(life=Life.GONE, at=machine.ready_since, message=message, trouble=NODE)
    return NodeLife(life=Life.UNKNOWN, message=f"node {machine.name} has stopped answering its cluster")


def _waiting(pod: PodState, machine: NodeState | None, patience: Patience, now: float) -> NodeLife:
    waited_s = now - (pod.started_at or pod.created_at)
    if pod.waiting is not None and pod.waiting[0] in _NOT_STARTING:
        why = ": ".join(filter(None, pod.waiting))
        if pod.waiting[0] in _HOPELESS or waited_s > patience.image_s:
            return _never(f"the container on node {pod.node} cannot be started: {why}", now)
        return NodeLife(life=Life.WAITING, message=f"waiting for its container: {why}", notice=_notice(pod, machine))
    if pod.node is None:
        why = pod.unscheduled or "the scheduler has not looked at it yet"
        if waited_s > patience.schedule_s:
            return _never(f"pod {pod.name} found no node in {waited_s:.0f} s: {why}", now)
        return NodeLife(life=Life.WAITING, message=f"waiting for its node: {why}", notice=_notice(pod, machine))
    said = pod.waiting[0] if pod.waiting else "the node has not said anything yet"
    return NodeLife(life=Life.WAITING, message=f"starting on node {pod.node}: {said}", notice=_notice(pod, machine))


def _never(message: str, now: float) -> NodeLife:
    return NodeLife(life=Life.GONE, at=now, reason=ExitReason.LAUNCH_FAILED, message=message)


def _notice(pod: PodState, machine: NodeState | None) -> Notice | None:
    """What is about to end the pod. That nobody of ours asked for it is for the caller to know."""
    if pod.deletion_at is not None:
        why = pod.disruption or "somebody deleted it"
        return Notice(message=f"pod {pod.name} on {pod.node} is being removed: {why}", deadline=pod.deletion_at)
    if pod.disruption is not None:
        return Notice(message=f"pod {pod.name} on {pod.node} will be removed: {pod.disruption}")
    if pod.node is None and pod.target is not None and not _takes_pods(machine):
        return Notice(message=f"node {pod.target} takes no new pods any more")
    if machine is None:
        return None
    if machine.leaving is not None:
        leaving = machine.leaving
        known = leaving.since is not None and leaving.within_s is not None
        deadline = leaving.since + leaving.within_s if known else None  # type: ignore[operator]
        return Notice(message=f"node {machine.name} is going away: {leaving.why}", deadline=deadline)
    return None


def _takes_pods(machine: NodeState | None) -> bool:
    return machine is not None and machine.ready is True and not machine.cordoned and machine.leaving is None
