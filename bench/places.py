"""Clusters to compare on: each with a Windlass server that uses it, and the cluster's own way to submit a job."""

from __future__ import annotations

import compileall
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import windlass
from bench.harness import BIN
from bench.rayhead import RayHead, running_ray
from windlass.agent.ports import free_port
from windlass.testing.kubelet.images import HOST
from windlass.testing.kubelet.real import running_real_node
from windlass.testing.kubernetes import HOST_ADDRESS, NAMESPACE, KubernetesCluster, running_kubernetes
from windlass.testing.servers import ServerProcess, running_server
from windlass.testing.slurm import SlurmCluster, running_slurm

_PATIENCE_S = 120.0
_SERIAL = itertools.count()


class Place(ABC):
    """`submit` is the cluster's own tool; it returns when that does."""

    type: str
    tool: str
    python = sys.executable  # an interpreter that there is on the nodes

    def __init__(self) -> None:
        self.port = free_port()  # of its server

    @abstractmethod
    def engine(self, folder: Path) -> dict[str, Any]: ...

    @abstractmethod
    def submit(self, command: Sequence[str]) -> None: ...

    def settle(self) -> None:
        """Whatever is left of jobs has ended: it must not burden the next measurement."""
        return


class RayPlace(Place):
    type, tool = "ray", "ray job submit"

    def __init__(self, head: RayHead) -> None:
        super().__init__()
        self._head = head

    def engine(self, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        return {"type": "ray", "address": self._head.gcs}

    def submit(self, command: Sequence[str]) -> None:
        _run([str(BIN / "ray"), "job", "submit", "--no-wait", "--address", self._head.jobs, "--", *command])


class SlurmPlace(Place):
    type, tool = "slurm", "sbatch"

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def engine(self, folder: Path) -> dict[str, Any]:
        return {"type": "slurm", "shared_dir": str(folder / "shared"), "conf": str(self._cluster.conf)}

    def submit(self, command: Sequence[str]) -> None:
        environ = {**os.environ, "SLURM_CONF": str(self._cluster.conf)}
        script = "#!/bin/sh\n" + " ".join(command) + "\n"
        subprocess.run(
            ["sbatch", "--output=/dev/null", "--cpus-per-task=1"],
            input=script.encode(),
            env=environ,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def settle(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while self._cluster.ask("squeue", "-h", "-a", "-o", "%i").split():
            if time.monotonic() > deadline:
                raise TimeoutError("Slurm's queue does not get empty")
            time.sleep(0.1)


class KubernetesPlace(Place):
    """A real kubelet with containers. The image holds no Python: the machine's own is mounted, in both arms."""

    type, tool = "kubernetes", "kubectl create"
    python = "/usr/bin/python3"

    def __init__(self, cluster: KubernetesCluster, folder: Path) -> None:
        super().__init__()
        self._cluster = cluster
        self._mounts = {"usr": ("/usr", "/usr"), "lib": ("/lib", "/usr/lib"), "lib64": ("/lib64", "/usr/lib64")}
        self._mounts["work"] = (str(folder), str(folder))

    def engine(self, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        volumes = [
            {"name": name, "mount": inside, "host_path": outside, "read_only": name != "work"}
            for name, (inside, outside) in self._mounts.items()
        ]
        return {
            "type": "kubernetes",
            "kubeconfig": str(self._cluster.controller_kubeconfig),
            "namespace": NAMESPACE,
            "server_url": f"http://{HOST_ADDRESS}:{self.port}",
            "image": HOST,
            "python": self.python,
            "defaults": {"volumes": volumes},
        }

    def submit(self, command: Sequence[str]) -> None:
        kubectl = ["kubectl", f"--kubeconfig={self._cluster.kubeconfig}", f"--namespace={NAMESPACE}"]
        _run([*kubectl, "create", "--validate=false", "-f", "-"], json.dumps(self._job(command)))

    def settle(self) -> None:
        kubectl = ["kubectl", f"--kubeconfig={self._cluster.kubeconfig}", f"--namespace={NAMESPACE}"]
        _run([*kubectl, "delete", "jobs", "--all", "--wait=true"])
        deadline = time.monotonic() + _PATIENCE_S
        while _run([*kubectl, "get", "pods", "-o", "name"]).strip():  # of either arm: they take a while to go
            if time.monotonic() > deadline:
                raise TimeoutError("pods do not go away")
            time.sleep(0.2)

    def _job(self, command: Sequence[str]) -> dict[str, Any]:
        mounts = [{"name": name, "mountPath": inside} for name, (inside, _) in self._mounts.items()]
        volumes = [{"name": name, "hostPath": {"path": outside}} for name, (_, outside) in self._mounts.items()]
        container = {"name": "main", "image": HOST, "command": list(command), "volumeMounts": mounts}
        container["imagePullPolicy"] = "Never"
        pod = {"containers": [container], "volumes": volumes, "restartPolicy": "Never"}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"bench-{next(_SERIAL)}"},
            "spec": {"template": {"spec": pod}},
        }


@contextlib.contextmanager
def opened_places(folder: Path, wanted: Sequence[str]) -> Iterator[list[tuple[Place, ServerProcess]]]:
    compileall.compile_dir(Path(windlass.__file__).parent, quiet=1)  # as an installer does; the tools are compiled too
    with contextlib.ExitStack() as stack:
        places: list[Place] = []
        if "ray" in wanted:
            places.append(RayPlace(stack.enter_context(running_ray(folder))))
        if "slurm" in wanted:
            places.append(SlurmPlace(stack.enter_context(running_slurm(nodes=2))))
        if "kubernetes" in wanted:
            cluster = stack.enter_context(running_kubernetes())
            cluster.install_rights()
            folder.chmod(0o777)  # pods are not root
            place = KubernetesPlace(cluster, folder)
            stack.enter_context(running_real_node(cluster, forwarded=[place.port]))
            places.append(place)
        yield [(place, stack.enter_context(server_for(place, folder / place.type))) for place in places]


@contextlib.contextmanager
def server_for(place: Place, folder: Path) -> Iterator[ServerProcess]:
    folder.mkdir()
    settings = {"server": {"url": f"http://127.0.0.1:{place.port}"}, "engines": {place.type: place.engine(folder)}}
    config = folder / "server.yaml"
    config.write_text(json.dumps(settings))
    with running_server(folder / "home", arguments=["--config", str(config), "--port", str(place.port)]) as server:
        yield server


def _run(command: Sequence[str], told: str = "") -> bytes:
    done = subprocess.run(command, capture_output=True, input=told.encode(), timeout=_PATIENCE_S)
    if done.returncode:
        raise RuntimeError(f"{command} exited with {done.returncode}:\n{done.stdout!r}\n{done.stderr!r}")
    return done.stdout
