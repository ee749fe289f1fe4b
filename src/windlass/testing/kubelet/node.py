"""The kubelet's loop: heartbeats for its machines, and every pod bound to one of them brought in line with the API."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from windlass.agent import kernel
from windlass.core.errors import Unavailable
from windlass.engines.kubernetes.api import ClusterApi, Json, Refused
from windlass.engines.kubernetes.watching import Watched
from windlass.testing.kubelet.containers import CannotRun, Container, HollowContainer, ProcessContainer
from windlass.testing.kubelet.statuses import render_status

log = logging.getLogger(__name__)

_BEAT_EVERY_S = 1.5
_LOOK_EVERY_S = 0.05
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    name: str
    address: str
    cpus: int
    memory: str
    gpus: int
    labels: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class _Pod:
    container: Container | None = None
    told: Json = field(default_factory=dict)  # the status that was reported last
    kill_at: float | None = None


class Kubelet:
    def __init__(self, api: ClusterApi, machines: Sequence[Machine], folder: Path, *, hollow: bool, name: str) -> None:
        self._api = api
        self._machines = {machine.name: machine for machine in machines}
        self._folder = folder
        self._hollow = hollow
        self._wake = threading.Event()
        query = {"fieldSelector": f"spec.nodeName={name}"} if len(machines) == 1 else {}
        self._bound = Watched(api, "/api/v1/pods", self._if_mine, query=query, changed=self._wake.set)
        self._pods: dict[str, _Pod] = {}  # by uid

    def run(self, stopping: threading.Event) -> None:
        kernel.adopt_orphans()
        for machine in self._machines.values():
            self._register(machine)
        beating = threading.Thread(target=self._beat, args=(stopping,), daemon=True)
        beating.start()
        self._bound.start()
        while not stopping.is_set():
            self._wake.wait(_LOOK_EVERY_S)
            self._wake.clear()
            try:
                self._reconcile()
            except (Unavailable, Refused) as problem:
                log.warning("%s; trying again", problem)
                stopping.wait(0.2)
        for pod in self._pods.values():
            if pod.container is not None:
                pod.container.kill()

    # ---- the node ----------------------------------------------------------------------------------------------

    def _register(self, machine: Machine) -> None:
        labels = {"kubernetes.io/hostname": machine.name, "kubernetes.io/os": "linux", **machine.labels}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": machine.name, "labels": labels}}
        self._api.create_or_get("/api/v1/nodes", node)
        amounts = {"cpu": str(machine.cpus), "memory": machine.memory, "pods": "200"}
        if machine.gpus:
            amounts["nvidia.com/gpu"] = str(machine.gpus)
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": machine.address}],
            "conditions": [_ready()],
        }
        self._api.patch(f"/api/v1/nodes/{machine.name}/status", {"status": status})
        spec = {"holderIdentity": machine.name, "leaseDurationSeconds": 40, "renewTime": _precise_now()}
        metadata = {"name": machine.name, "namespace": "kube-node-lease"}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        self._api.create_or_get(_LEASES, lease)

    def _beat(self, stopping: threading.Event) -> None:
        """A node that was taken for dead is Ready again once its lease is renewed and its status says so."""
        while not stopping.wait(_BEAT_EVERY_S):
            for machine in self._machines.values():
                with contextlib.suppress(Unavailable, Refused):
                    self._api.patch(f"{_LEASES}/{machine.name}", {"spec": {"renewTime": _precise_now()}})
                    if len(self._machines) == 1:
                        ready = {"status": {"conditions": [_ready()]}}
                        self._api.patch(f"/api/v1/nodes/{machine.name}/status", ready)

    # ---- pods --------------------------------------------------------------------------------------------------

    def _if_mine(self, seen: Json) -> Json | None:
        return seen if seen["spec"].get("nodeName") in self._machines else None

    def _reconcile(self) -> None:
        bound = {seen["metadata"]["uid"]: seen for seen in self._bound.snapshot().values()}
        for uid, seen in bound.items():
            self._bring_in_line(self._pods.setdefault(uid, _Pod()), seen)
        if not self._bound.is_current:
            return  # what is missing from an old copy may well be there
        for uid in self._pods.keys() - bound.keys():
            pod = self._pods.pop(uid)
            if pod.container is not None:
                pod.container.kill()

    def _bring_in_line(self, pod: _Pod, seen: Json) -> None:
        deleted = seen["metadata"].get("deletionTimestamp") is not None
        if pod.container is None and not deleted and seen["status"]["phase"] == "Pending":
            self._start(pod, seen)
        if pod.container is not None:
            pod.container.look()
        self._tell(pod, seen)
        if not deleted:
            return
        if pod.container is None or pod.container.exit_code is not None:
            self._api.delete(_path(seen), grace_s=0)
        elif pod.kill_at is None:
            pod.kill_at = time.monotonic() + float(seen["metadata"].get("deletionGracePeriodSeconds") or 0)
            pod.container.terminate()
        elif time.monotonic() > pod.kill_at:
            pod.container.kill()

    def _start(self, pod: _Pod, seen: Json) -> None:
        machine = self._machines[seen["spec"]["nodeName"]]
        try:
            kind = HollowContainer if self._hollow else ProcessContainer
            pod.container = kind(self._api, seen, self._folder, machine.address)
        except CannotRun as problem:
            self._tell(pod, seen, waiting=problem)

    def _tell(self, pod: _Pod, seen: Json, waiting: CannotRun | None = None) -> None:
        if pod.container is None and waiting is None:
            return
        machine = self._machines[seen["spec"]["nodeName"]]
        status = render_status(seen, machine.address, pod.container, waiting)
        if status != pod.told:
            with contextlib.suppress(Refused):  # deleted in the meantime
                self._api.patch(f"{_path(seen)}/status", {"status": status})
            pod.told = status


def _path(seen: Json) -> str:
    return f"/api/v1/namespaces/{seen['metadata']['namespace']}/pods/{seen['metadata']['name']}"


def _precise_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _ready() -> Json:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
