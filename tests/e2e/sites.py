"""Places a run can go to, each with two nodes and more, of which one can be killed: what tests of all engines share."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.agent import layout
from windlass.agent.files import read_json
from windlass.agent.ports import free_port
from windlass.client import Client
from windlass.testing.kubernetes import NAMESPACE, KubernetesCluster
from windlass.testing.ray import RayCluster
from windlass.testing.servers import ServerProcess, end_processes_of, start_server
from windlass.testing.slurm import SlurmCluster
from windlass.wire.runs import AttemptView

ENGINES = [
    "local",
    pytest.param("ray", marks=pytest.mark.ray),
    pytest.param("slurm", marks=pytest.mark.slurm),
    pytest.param("kubernetes", marks=pytest.mark.kubernetes),
]


class Site(ABC):
    """A cluster of one kind."""

    type: str

    @abstractmethod
    def engine(self, folder: Path) -> dict[str, Any]:
        """What the server's config says about it."""

    @abstractmethod
    def kill_node(self, attempt: AttemptView) -> str:
        """A machine that holds a part of the attempt is gone, without a word: that of the last ranks if it can be. Its
        name."""

    @abstractmethod
    def give_back(self) -> None:
        """The machine that was killed is there again; what runs on others is not disturbed."""

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """While the block lasts, the cluster's own control plane is away; nodes go on."""
        raise NotImplementedError(f"{self.type} has no control plane of its own")
        yield

    def recover(self) -> None:
        """As new, for the next test."""
        return


class LocalSite(Site):
    type = "local"

    def engine(self, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        return {"type": "local", "nodes": 2}

    def kill_node(self, attempt: AttemptView) -> str:
        """All that is on it, for it is a part of this machine: who is not to find it there again sets it aside."""
        status = read_json(os.path.join(attempt.log_dirs[-1], layout.STATUS))
        assert status is not None
        os.kill(status["pid"], signal.SIGKILL)
        return attempt.nodes[-1]

    def give_back(self) -> None:
        return


class RaySite(Site):
    type = "ray"

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster

    def engine(self, folder: Path) -> dict[str, Any]:
        return {"type": "ray", "address": self._cluster.address, "namespace": folder.name}

    def kill_node(self, attempt: AttemptView) -> str:
        """Any but the head, which is no node among others."""
        name = [name for name in attempt.nodes if name in self._cluster.nodes][-1]
        self._cluster.kill_raylet(name)
        return name

    def recover(self) -> None:
        self.give_back()

    def give_back(self) -> None:
        for number in (1, 2):
            if f"n{number}" not in self._cluster.nodes:
                self._cluster.start_node(number, cpus=4, gpus=2 if number == 1 else 0)


class SlurmSite(Site):
    type = "slurm"

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster

    def engine(self, folder: Path) -> dict[str, Any]:
        return {
            "type": "slurm",
            "shared_dir": str(folder / "shared"),
            "conf": str(self._cluster.conf),
            "poll_interval_s": 0.5,
            "settle_s": 1.0,
        }

    def kill_node(self, attempt: AttemptView) -> str:
        """The daemon goes; Slurm is told, as a site's health check would: by itself it takes its time."""
        node = attempt.nodes[-1]
        self._cluster.kill(node)
        self._cluster.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        return node

    def give_back(self) -> None:
        for node in self._cluster.node_names:
            if not self._cluster.is_up(node):
                self._cluster.start_slurmd(node)
                # Once it has told of itself it is back already, and there is nothing to resume.
                self._cluster.ask("scontrol", "update", f"nodename={node}", "state=resume", check=False)

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        self._cluster.end("slurmctld")
        yield
        self._cluster.start_slurmctld()

    def recover(self) -> None:
        self._cluster.recover()


class KubernetesSite(Site):
    type = "kubernetes"

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._third = cluster.add_node("n3")
        self._killed: list[str] = []

    def engine(self, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        return {
            "type": "kubernetes",
            "kubeconfig": str(self._cluster.controller_kubeconfig),
            "namespace": NAMESPACE,
            "image": "windlass-test",
            "python": sys.executable,
            "node_loss": 2,
        }

    def kill_node(self, attempt: AttemptView) -> str:
        name = attempt.nodes[-1]
        self._cluster.node(name).kill()
        self._killed.append(name)
        return name

    def give_back(self) -> None:
        for name in self._killed:
            self._cluster.remove_node(self._cluster.node(name))
            node = self._cluster.add_node(name)
            self._third = node if name == self._third.name else self._third
        self._killed.clear()

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        self._cluster.kill_part("apiserver")
        yield
        self._cluster.start_part("apiserver")
        self._cluster.wait_ready()

    def recover(self) -> None:
        self._cluster.clear()
        for name in self._killed:
            self._cluster.remove_node(self._cluster.node(name))
            if name != self._third.name:
                self._cluster.add_node(name)
        if self._third.name not in self._killed:
            self._cluster.remove_node(self._third)


class Installation:
    """A server that uses one site, under the site's name."""

    def __init__(
        self,
        folder: Path,
        site: Site,
        *,
        config: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.site = site
        self.home = folder / "home"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        settings = {"server": {"url": self.url}, "engines": {site.type: site.engine(folder)}, **(config or {})}
        path = folder / "server.yaml"
        path.write_text(json.dumps(settings))
        self._arguments = ["--config", str(path), "--port", str(self.port)]
        self._environ = dict(environ or {})
        self.server: ServerProcess = self.start()

    def start(self) -> ServerProcess:
        self.server = start_server(self.home, arguments=self._arguments, environ=self._environ)
        return self.server

    def client(self) -> Client:
        return Client(url=self.server.url, token=self.server.token, home=self.home)

    def api(self) -> httpx.Client:
        return self.server.client()

    def close(self) -> None:
        self.server.terminate()
        end_processes_of(self.home)


@contextlib.contextmanager
def opened_site(type: str, request: pytest.FixtureRequest) -> Iterator[Site]:
    site: Site
    if type == "local":
        site = LocalSite()
    else:
        cluster = request.getfixturevalue(f"{type}_cluster")
        site = {"ray": RaySite, "slurm": SlurmSite, "kubernetes": KubernetesSite}[type](cluster)
    try:
        yield site
    finally:
        site.recover()
