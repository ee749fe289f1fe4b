"""The status of a pod as a kubelet reports it. Pure, but for the container that is asked how it is."""

from __future__ import annotations

from datetime import UTC, datetime

from windlass.engines.kubernetes.api import Json
from windlass.testing.kubelet.containers import CannotRun, Container


def render_status(seen: Json, address: str, container: Container | None, waiting: CannotRun | None) -> Json:
    phase, state = _state(container, waiting)
    running = phase == "Running"
    first = seen["spec"]["containers"][0]
    status = {
        "name": first["name"],
        "image": first["image"],
        "imageID": "",
        "ready": running,
        "restartCount": 0,
        "state": state,
    }
    return {
        "phase": phase,
        "hostIP": address,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": seen["status"].get("startTime") or seen["metadata"]["creationTimestamp"],
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Initialized", "status": "True"},
            {"type": "ContainersReady", "status": str(running)},
            {"type": "Ready", "status": str(running)},
        ],
        "containerStatuses": [status],
    }


def _state(container: Container | None, waiting: CannotRun | None) -> tuple[str, Json]:
    if waiting is not None:
        return "Pending", {"waiting": {"reason": waiting.reason, "message": str(waiting)}}
    assert container is not None
    started_at = _time(container.started_at)
    if container.exit_code is None:
        return "Running", {"running": {"startedAt": started_at}}
    code = container.exit_code
    reason = "OOMKilled" if container.out_of_memory else "Completed" if code == 0 else "Error"
    ended = {
        "exitCode": code,
        "reason": reason,
        "startedAt": started_at,
        "finishedAt": _time(container.ended_at or container.started_at),
        "message": container.last_words() if code else "",
    }
    return "Succeeded" if code == 0 else "Failed", {"terminated": ended}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
