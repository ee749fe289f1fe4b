"""A real kubelet with containerd, in a network namespace of its own: pods are containers, confined as they would be.

Needs root, and Debian's containerd, runc, containernetworking-plugins and busybox-static. There is no registry: images
are imported, and hold busybox alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from windlass.testing.kubelet.images import HOST, PAUSE, write_image
from windlass.testing.kubernetes import HOST_ADDRESS, KubernetesCluster, KubernetesUnavailable

_NODE_ADDRESS = "198.18.76.1"
_PODS = "198.18.77.0/24"
_READY_S = 60.0
_TOOLS = ("containerd", "runc", "ctr", "ip", "nsenter")


def check_real_node(programs: Path) -> None:
    """Raises KubernetesUnavailable if this machine cannot run one."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    missing += [
        str(path)
        for path in (programs / "kubelet", Path("/usr/lib/cni/bridge"), Path("/bin/busybox"))
        if not path.exists()
    ]
    if os.getuid() != 0:
        raise KubernetesUnavailable("a real kubelet needs root")
    if missing:
        raise KubernetesUnavailable(f"a real kubelet needs {', '.join(missing)}")


class RealNode:
    def __init__(self, cluster: KubernetesCluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._folder = cluster.folder / f"real-{name}"
        self._space = f"windlass-{os.getpid()}"
        self._link = f"wl{os.getpid()}"
        self._parts: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._folder.mkdir()
        self._start_containerd()
        self._start_kubelet()
        self._cluster.wait_for_nodes([self.name], self._parts[-1], self._folder / "kubelet.log")

    def stop(self) -> None:
        if len(self._parts) > 1:
            self._end(self._parts.pop())  # the kubelet first, or it would start again what is ended here
        for kind, words in (("tasks", ("kill", "-s", "9")), ("containers", ("rm",))):
            for name in self._ctr(kind, "ls", "-q").split():
                self._ctr(kind, *words, name)
                if kind == "tasks":
                    self._wait_until_stopped(name)
                    self._ctr("tasks", "rm", name)
        for part in self._parts:
            self._end(part)
        self._run("ip", "netns", "del", self._space, check=False)
        self._run("ip", "link", "del", self._link, check=False)
        self._unmount()

    def last_words(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self._folder.glob("*.log"))

    # ---- parts -------------------------------------------------------------------------------------------------

    def make_network(self) -> None:
        """Its own namespace, and a cable to this machine."""
        inside = ("ip", "netns", "exec", self._space)
        self._run("ip", "netns", "add", self._space)
        self._run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "up0", "netns", self._space)
        self._run("ip", "addr", "add", f"{HOST_ADDRESS}/24", "dev", self._link)
        self._run("ip", "link", "set", self._link, "up")
        self._run(*inside, "ip", "link", "set", "lo", "up")
        self._run(*inside, "ip", "addr", "add", f"{_NODE_ADDRESS}/24", "dev", "up0")
        self._run(*inside, "ip", "link", "set", "up0", "up")
        self._run(*inside, "ip", "route", "add", "default", "via", HOST_ADDRESS)
        self._run(*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self._run("ip", "route", "add", _PODS, "via", _NODE_ADDRESS, "dev", self._link)

    def _start_containerd(self) -> None:
        network = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self._folder / "ipam"),
                        "ranges": [[{"subnet": _PODS}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        (self._folder / "cni").mkdir()
        (self._folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        (self._folder / "containerd.toml").write_text(
            f"""
version = 2
root = "{self._folder}/containerd"
state = "{self._folder}/containerd-state"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{self._folder}/cni"
"""
        )
        self._start("containerd", "containerd", "-c", str(self._folder / "containerd.toml"))
        deadline = time.monotonic() + _READY_S
        while not self._socket.exists() or "Version" not in self._ctr("version"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"containerd does not get ready:\n{self.last_words()}")
            time.sleep(0.1)
        for name, entrypoint in ((PAUSE, ["/bin/sleep", "1000000000"]), (HOST, ["/bin/sh"])):
            archive = self._folder / "image.tar"
            write_image(archive, name, entrypoint)
            self._ctr("images", "import", str(archive))

    def _start_kubelet(self) -> None:
        kubeconfig = yaml.safe_load(self._cluster.kubeconfig.read_text())
        kubeconfig["clusters"][0]["cluster"]["server"] = f"https://{HOST_ADDRESS}:{self._cluster.port}"
        (self._folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": _NODE_ADDRESS,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "nodeStatusUpdateFrequency": "1s",
        }
        (self._folder / "kubelet.yaml").write_text(yaml.safe_dump(settings))
        self._start(
            "kubelet",
            str(self._cluster.programs / "kubelet"),
            f"--kubeconfig={self._folder}/kubeconfig",
            f"--config={self._folder}/kubelet.yaml",
            f"--root-dir={self._folder}/kubelet",
            f"--cert-dir={self._folder}/pki",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self._socket}",
            f"--hostname-override={self.name}",
            f"--node-ip={_NODE_ADDRESS}",
            "--node-labels=pool=real",
        )

    # ---- processes ---------------------------------------------------------------------------------------------

    @property
    def _socket(self) -> Path:
        return self._folder / "containerd.sock"

    def _start(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as output:
            self._parts.append(
                subprocess.Popen(
                    ["nsenter", f"--net=/run/netns/{self._space}", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def _end(self, part: subprocess.Popen[bytes]) -> None:
        part.terminate()
        try:
            part.wait(10)
        except subprocess.TimeoutExpired:
            part.kill()
            part.wait()

    def _ctr(self, *words: str) -> str:
        command = ["ctr", "-a", str(self._socket), "-n", "k8s.io", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout

    def _wait_until_stopped(self, task: str) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if not any(task in line and "RUNNING" in line for line in self._ctr("tasks", "ls").splitlines()):
                return
            time.sleep(0.1)

    def _unmount(self) -> None:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([path for path in mounts if path.startswith(f"{self._folder}/")]):
            self._run("umount", "-l", mount, check=False)

    def _run(self, *command: str, check: bool = True) -> None:
        subprocess.run(command, check=check, capture_output=True)


@contextlib.contextmanager
def running_real_node(
    cluster: KubernetesCluster, name: str = "real", *, forwarded: Sequence[int] = ()
) -> Iterator[RealNode]:
    """A node that is gone when the block ends. It and its pods reach this machine at HOST_ADDRESS: the API server's
    port, and those `forwarded`. Raises KubernetesUnavailable."""
    check_real_node(cluster.programs)
    node = RealNode(cluster, name)
    try:
        node.make_network()
        with _forwarding([cluster.port, *forwarded]):
            node.start()
            yield node
    finally:
        node.stop()
        cluster.admin.delete(f"/api/v1/nodes/{name}")


@contextlib.contextmanager
def _forwarding(ports: Sequence[int]) -> Iterator[None]:
    """Connections to HOST_ADDRESS go on to the same port of the loopback address, where servers of tests listen."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="forwarding")
    thread.start()
    servers: list[asyncio.Server] = []
    try:
        servers.extend(asyncio.run_coroutine_threadsafe(_listen(port), loop).result(10) for port in ports)
        yield
    finally:
        asyncio.run_coroutine_threadsafe(_close(servers), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _listen(port: int) -> asyncio.Server:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):  # cut off, or not wanted any more
            further_reader, further_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_pass_on(reader, further_writer), _pass_on(further_reader, writer))
        writer.close()

    return await asyncio.start_server(forward, HOST_ADDRESS, port)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def _close(servers: Sequence[asyncio.Server]) -> None:
    for server in servers:
        server.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # closed transports let go of their sockets in the next turn
