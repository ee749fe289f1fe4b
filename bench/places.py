"""Clusters to compare on: each with a Windlass server that uses it, and the cluster's own way to submit a job."""

from __future__ import annotations

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

from bench.harness import BIN, free_ports
from bench.rayhead import RayHead, running_ray
from windlass.testing.kubernetes import NAMESPACE, KubernetesCluster, running_kubernetes
from windlass.testing.servers import ServerProcess, running_server
from windlass.testing.slurm import SlurmCluster, running_slurm

_PATIENCE_S = 120.0
_SERIAL = itertools.count()


class Place(ABC):
    """`submit` is the cluster's own tool; it returns when that does."""

    type: str
    tool: str

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
        self._head = head

    def engine(self, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        return {"type": "ray", "address": self._head.gcs}

    def submit(self, command: Sequence[str]) -> None:
        _run([str(BIN / "ray"), "job", "submit", "--no-wait", "--address", self._head.jobs, "--", *command])


class SlurmPlace(Place):
    type, tool = "slurm", "sbatch"

    def __init__(self, cluster: SlurmCluster) -> None:
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
    type, tool = "kubernetes", "kubectl create job"

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster

    def engine(self, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        return {
            "type": "kubernetes",
            "kubeconfig": str(self._cluster.controller_kubeconfig),
            "namespace": NAMESPACE,
            "image": "bench",
            "python": sys.executable,
        }

    def submit(self, command: Sequence[str]) -> None:
        kubectl = ["kubectl", f"--kubeconfig={self._cluster.kubeconfig}", f"--namespace={NAMESPACE}"]
        _run([*kubectl, "create", "job", f"bench-{next(_SERIAL)}", "--image=bench", "--", *command])


@contextlib.contextmanager
def opened_places(folder: Path, wanted: Sequence[str]) -> Iterator[list[tuple[Place, ServerProcess]]]:
    with contextlib.ExitStack() as stack:
        places: list[Place] = []
        if "ray" in wanted:
            places.append(RayPlace(stack.enter_context(running_ray(folder))))
        if "slurm" in wanted:
            places.append(SlurmPlace(stack.enter_context(running_slurm(nodes=2))))
        if "kubernetes" in wanted:
            cluster = stack.enter_context(running_kubernetes())
            cluster.install_rights()
            for name in ("n1", "n2"):
                cluster.add_node(name)
            places.append(KubernetesPlace(cluster))
        yield [(place, stack.enter_context(server_for(place, folder / place.type))) for place in places]


@contextlib.contextmanager
def server_for(place: Place, folder: Path) -> Iterator[ServerProcess]:
    folder.mkdir()
    [port] = free_ports(1)
    settings = {"server": {"url": f"http://127.0.0.1:{port}"}, "engines": {place.type: place.engine(folder)}}
    config = folder / "server.yaml"
    config.write_text(json.dumps(settings))
    with running_server(folder / "home", arguments=["--config", str(config), "--port", str(port)]) as server:
        yield server


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE_S)
    if done.returncode:
        raise RuntimeError(f"{command} exited with {done.returncode}:\n{done.stdout!r}\n{done.stderr!r}")
