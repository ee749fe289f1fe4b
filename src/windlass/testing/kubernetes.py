"""A real Kubernetes control plane for tests: etcd, API server, controllers and scheduler, and stand-in nodes that run
pods as processes of this machine. Everything is gone when the block ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from windlass.agent.ports import free_ports
from windlass.core.errors import Unavailable
from windlass.engines.kubernetes.api import ClusterApi, Refused, open_api

VERSION = "1.20.2"
ADMIN = "admin"
# What the installed server's controllers are known as; its rights come from the manifests in deploy/.
CONTROLLER = "system:serviceaccount:windlass:windlass-controller"
NAMESPACE = "windlass-runs"
DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"
HOST_ADDRESS = "198.18.76.254"  # this machine, as seen from a real node's network
NODE_GRACE_S = 6  # silent for longer, a node is NotReady
_NEEDED = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_READY_S = 90.0
_LOOK_EVERY_S = 0.05


class KubernetesUnavailable(Exception):
    """There is no Kubernetes to test with; the message says why."""


def binaries() -> Path:
    """The folder of the control plane's programs; see tools/kubernetes/build.sh."""
    folder = Path(
        os.environ.get("WINDLASS_KUBERNETES_BIN") or Path.home() / ".cache" / "windlass" / f"kubernetes-{VERSION}"
    )
    for name in _NEEDED:
        if not (folder / name).exists():
            raise KubernetesUnavailable(f"{folder / name} is missing; `make test-kubernetes` builds it")
    if shutil.which("etcd") is None:
        raise KubernetesUnavailable("etcd is not installed; Debian has it in etcd-server")
    return folder


@dataclass(slots=True, kw_only=True)
class StandInNode:
    """One process that is a kubelet, or several (`count`)."""

    name: str
    process: subprocess.Popen[bytes]
    folder: Path

    def kill(self) -> None:
        """As when a machine loses its power: its pods' processes go with it."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


@dataclass(slots=True, kw_only=True)
class KubernetesCluster:
    folder: Path
    port: int
    programs: Path
    admin: ClusterApi
    kubeconfig: Path  # of the administrator
    controller_kubeconfig: Path  # of the server's controllers, with their rights and no more
    _parts: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _commands: dict[str, list[str]] = field(default_factory=dict)
    _nodes: list[StandInNode] = field(default_factory=list)
    _addresses: int = 0

    # ---- parts -------------------------------------------------------------------------------------------------

    def start_part(self, name: str, command: Sequence[str] | None = None) -> None:
        if command is not None:
            self._commands[name] = list(command)
        with (self.folder / f"{name}.log").open("ab") as output:
            self._parts[name] = subprocess.Popen(
                self._commands[name], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def kill_part(self, name: str) -> None:
        part = self._parts.pop(name)
        part.kill()
        part.wait()

    def wait_ready(self) -> None:
        """Until the API server answers."""
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                self.admin.get("/api/v1/namespaces/default")
                return
            except (Unavailable, Refused) as problem:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the API server does not get ready: {problem}") from problem
                if (code := self._parts["apiserver"].poll()) is not None:
                    tail = (self.folder / "apiserver.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"the API server ended with {code}:\n{tail}") from problem
            time.sleep(_LOOK_EVERY_S)

    # ---- nodes -------------------------------------------------------------------------------------------------

    def add_node(
        self,
        name: str,
        *,
        cpus: int = 4,
        memory: str = "8Gi",
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
        count: int = 1,
        hollow: bool = False,
    ) -> StandInNode:
        """A machine (or `count` of them, numbered, in one process), ready for pods when this returns. `hollow` ones
        start no processes: see `windlass.testing.kubelet`."""
        folder = self.folder / "nodes" / name
        folder.mkdir(parents=True, exist_ok=True)
        first, self._addresses = self._addresses + 1, self._addresses + count
        command = [sys.executable, "-m", "windlass.testing.kubelet", "--kubeconfig", str(self.kubeconfig)]
        command += ["--name", name, "--folder", str(folder), "--address-number", str(first), "--count", str(count)]
        command += ["--cpus", str(cpus), "--memory", memory, "--gpus", str(gpus)]
        command += [f"--label={key}={value}" for key, value in (labels or {}).items()]
        command += ["--hollow"] if hollow else []
        clean = {key: value for key, value in os.environ.items() if not key.startswith("WINDLASS_")}
        with (folder / "kubelet.log").open("ab") as output:
            process = subprocess.Popen(command, env=clean, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        node = StandInNode(name=name, process=process, folder=folder)
        self._nodes.append(node)
        names = [name] if count == 1 else [f"{name}-{number}" for number in range(count)]
        self.wait_for_nodes(names, process, folder / "kubelet.log")
        return node

    def node(self, name: str) -> StandInNode:
        return next(node for node in self._nodes if node.name == name)

    def remove_node(self, node: StandInNode) -> None:
        """The machine and the cluster's memory of it."""
        node.stop()
        self._nodes.remove(node)
        for found in self.admin.get("/api/v1/nodes", labelSelector=f"windlass.test/kubelet={node.name}")["items"]:
            self.admin.delete(f"/api/v1/nodes/{found['metadata']['name']}")

    def wait_for_nodes(self, names: Sequence[str], kubelet: subprocess.Popen[bytes], log: Path) -> None:
        """Until they take pods."""
        missing, deadline = set(names), time.monotonic() + 60
        while missing:
            for found in self.admin.get("/api/v1/nodes")["items"]:
                ready = any(
                    c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions", [])
                )
                if ready and not found["spec"].get("taints"):
                    missing.discard(found["metadata"]["name"])
            if kubelet.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"nodes {sorted(missing)[:5]} do not get ready:\n{said}")
            time.sleep(_LOOK_EVERY_S)

    # ---- objects -----------------------------------------------------------------------------------------------

    def apply(self, manifests: Sequence[Mapping[str, Any]]) -> None:
        """Make what is not there."""
        for manifest in manifests:
            self.admin.create_or_get(self.path_of(manifest), manifest)

    def install_rights(self) -> None:
        """What an installation gives the server's controllers, from the manifests that people install."""
        self.apply(list(yaml.safe_load_all((DEPLOY / "rbac.yaml").read_text())))

    def path_of(self, manifest: Mapping[str, Any]) -> str:
        """The collection that a manifest is posted to."""
        version, plural = manifest["apiVersion"], _plural(manifest["kind"])
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        namespace = manifest["metadata"].get("namespace")
        return f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"

    def clear(self) -> None:
        """No pods, services or secrets of attempts."""
        for plural in ("pods", "secrets"):
            self.admin.delete(f"/api/v1/namespaces/{NAMESPACE}/{plural}", grace_s=0)
        for service in self.admin.get(f"/api/v1/namespaces/{NAMESPACE}/services")["items"]:
            self.admin.delete(f"/api/v1/namespaces/{NAMESPACE}/services/{service['metadata']['name']}")

    def stop(self) -> None:
        for node in self._nodes:
            node.stop()
        for part in self._parts.values():
            part.kill()
        for part in self._parts.values():
            part.wait()


@contextlib.contextmanager
def running_kubernetes() -> Iterator[KubernetesCluster]:
    """A control plane without nodes. Raises KubernetesUnavailable if there is none to run."""
    programs = binaries()
    folder = Path(tempfile.mkdtemp(prefix="windlass-k8s-"))
    watcher = _end_with_this_process(folder)
    try:
        cluster = _start(programs, folder)
        try:
            cluster.wait_ready()
            cluster.apply([_namespace("windlass"), _namespace(NAMESPACE)])
            yield cluster
        finally:
            cluster.stop()
    finally:
        watcher.kill()
        watcher.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def _start(programs: Path, folder: Path) -> KubernetesCluster:
    etcd, peer, port = free_ports(3)
    (folder / "tokens.csv").write_text(
        f'admin-token,{ADMIN},1,"system:masters"\ncontroller-token,{CONTROLLER},2,"system:serviceaccounts"\n'
    )
    key, certificate = folder / "server.key", folder / "server.crt"
    _make_certificate(key, certificate)
    kubeconfigs = {}
    for user in ("admin", "controller"):
        kubeconfigs[user] = folder / f"{user}.kubeconfig"
        kubeconfigs[user].write_text(yaml.safe_dump(_kubeconfig(folder, port, f"{user}-token")))
    cluster = KubernetesCluster(
        folder=folder,
        port=port,
        programs=programs,
        admin=open_api(kubeconfig=str(kubeconfigs["admin"]), context=None),
        kubeconfig=kubeconfigs["admin"],
        controller_kubeconfig=kubeconfigs["controller"],
    )
    try:
        for name, command in _commands(programs, folder, kubeconfigs["admin"], etcd, peer, port).items():
            cluster.start_part(name, command)
            if name == "apiserver":
                cluster.wait_ready()
    except BaseException:
        cluster.stop()
        raise
    return cluster


def _commands(programs: Path, folder: Path, kubeconfig: Path, etcd: int, peer: int, port: int) -> dict[str, list[str]]:
    """The parts of a control plane, in the order in which they are started; the numbers are their ports."""
    key, certificate = folder / "server.key", folder / "server.crt"
    cluster_etcd = f"http://127.0.0.1:{etcd}"
    return {
        "etcd": [
            "etcd", f"--data-dir={folder}/etcd", "--unsafe-no-fsync", "--logger=zap", "--log-level=error",
            f"--listen-client-urls={cluster_etcd}", f"--advertise-client-urls={cluster_etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
        ],
        "apiserver": [
            str(programs / "kube-apiserver"), f"--etcd-servers={cluster_etcd}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", f"--secure-port={port}", "--insecure-port=0",
            f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}", "--service-cluster-ip-range=10.0.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none", "--profiling=false",
        ],
        "controller-manager": [
            str(programs / "kube-controller-manager"), f"--kubeconfig={kubeconfig}", "--leader-elect=false",
            f"--service-account-private-key-file={key}", "--port=0", "--secure-port=0",
            f"--node-monitor-grace-period={NODE_GRACE_S}s", "--node-monitor-period=1s",
            "--controllers=nodelifecycle,podgc,garbagecollector,namespace,serviceaccount,disruption,job,resourcequota",
        ],
        "scheduler": [
            str(programs / "kube-scheduler"), f"--kubeconfig={kubeconfig}", "--leader-elect=false",
            "--port=0", "--secure-port=0",
        ],
    }  # fmt: skip


def _kubeconfig(folder: Path, port: int, token: str) -> dict[str, Any]:
    server = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(folder / "server.crt")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }


def _make_certificate(key: Path, certificate: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=windlass-test"]
    command += [
        "-addext",
        f"subjectAltName=IP:127.0.0.1,IP:{HOST_ADDRESS}",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(command, check=True, capture_output=True)


def _namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _plural(kind: str) -> str:
    plain = kind.lower()
    return f"{plain[:-1]}ies" if plain.endswith("y") else f"{plain}es" if plain.endswith("s") else f"{plain}s"


def _end_with_this_process(folder: Path) -> subprocess.Popen[bytes]:
    """A process of its own that waits for the end of this one, also by SIGKILL, and then ends what names the folder."""
    script = 'read _; pids=$(grep -lsF "$1" /proc/[0-9]*/cmdline | cut -d/ -f3); kill -9 $pids; rm -rf "$1"'
    command = ["/bin/sh", "-c", script, "windlass-k8s-watcher", str(folder)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
