"""A real Ray cluster on one machine for tests: a head and raylets as processes, which can be killed one by one.

Every raylet has a loopback address of its own, so that Ray takes each for a machine. Node death is noticed in seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from windlass.agent import kernel
from windlass.agent.ports import free_ports

_PATIENCE_S = 90.0
_LOOK_EVERY_S = 0.05
_QUICK_DEATH = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}
_MARK = "WINDLASS_TEST_RAY"  # in the environment of every process of a cluster, so that none is left behind


class RayUnavailable(Exception):
    """There is no Ray to test with; the message says why."""


@dataclass(slots=True, kw_only=True)
class RayCluster:
    """`start_head` and `start_node` begin; `await_nodes` waits for what they began."""

    folder: Path
    port: int
    client_port: int
    heads: int = 0  # how many there have been
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)  # by name; the head is "head"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def client_address(self) -> str:
        """For those who are on no node of it."""
        return f"ray://127.0.0.1:{self.client_port}"

    def start_head(self, *, cpus: int = 2) -> None:
        self._start(
            "head",
            "--head",
            f"--port={self.port}",
            f"--ray-client-server-port={self.client_port}",
            "--include-dashboard=false",
            f"--num-cpus={cpus}",
            f"--temp-dir={self.folder / f'head{self.heads}'}",  # a second one would refuse the first one's
        )
        self.heads += 1
        self._await(lambda: _answers(self.port), "the head of Ray does not start")

    def start_node(
        self, number: int, *, cpus: int = 2, gpus: int = 0, resources: Mapping[str, float] | None = None
    ) -> str:
        """Its name in Ray. `resources`: others that it says to have."""
        name = f"n{number}"
        self._start(
            name,
            f"--address={self.address}",
            f"--node-ip-address=127.0.0.{number + 1}",
            f"--node-name={name}",
            f"--num-cpus={cpus}",
            f"--num-gpus={gpus}",
            f"--resources={json.dumps(dict(resources or {}))}",
            f"--temp-dir={self.folder / name}",  # raylets that start together would take each other's sockets
        )
        return name

    def raylet(self, name: str) -> int:
        """The process id of a node's raylet."""
        found = [pid for pid in kernel.descendants(self.nodes[name].pid) if "raylet/raylet" in _command(pid)]
        if not found:
            raise RuntimeError(f"node {name} has no raylet:\n{self.log(name)}")
        return found[0]

    def kill_raylet(self, name: str) -> None:
        """As if the machine had lost power, but for the processes that Ray started on it."""
        os.kill(self.raylet(name), signal.SIGKILL)
        self.nodes.pop(name).wait(_PATIENCE_S)

    def kill_node(self, name: str) -> None:
        """With all of Ray's own processes on it: for the head, its GCS too. Those in sessions of their own go on."""
        process = self.nodes.pop(name)
        for pid in [*kernel.descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(_PATIENCE_S)

    def drain(self, node_id: str, *, deadline_s: int) -> None:
        """As a cloud's notice would have it: the node will be taken away."""
        command = [
            str(Path(sys.executable).with_name("ray")),
            "drain-node",
            f"--address={self.address}",
            f"--node-id={node_id}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=spot",
            f"--deadline-remaining-seconds={deadline_s}",
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE_S)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def end(self) -> None:
        """Every process that belongs to the cluster, also those that outlived their raylet."""
        deadline = time.monotonic() + _PATIENCE_S
        while left := self._processes():
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {left} of the Ray cluster in {self.folder} do not end")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_EVERY_S)
        for process in self.nodes.values():
            process.wait()

    def _start(self, name: str, *arguments: str) -> None:
        command = [
            str(Path(sys.executable).with_name("ray")),
            "start",
            "--block",
            "--disable-usage-stats",
            "--include-log-monitor=false",
            "--object-store-memory=80000000",
            *arguments,
        ]
        environ = {**os.environ, **_QUICK_DEATH, _MARK: str(self.folder)}
        with (self.folder / f"{name}.log").open("ab") as output:
            self.nodes[name] = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def _await(self, condition: object, complaint: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            ended = [name for name, process in self.nodes.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RayUnavailable(f"{complaint}:\n{''.join(self.log(name) for name in ended or self.nodes)}")
            time.sleep(_LOOK_EVERY_S)

    def _processes(self) -> list[int]:
        mark = f"{_MARK}={self.folder}".encode()
        found = []
        for pid in kernel.all_pids():
            state = kernel.stat(pid)
            if state is not None and state.state not in "ZX" and mark in _environ(pid):
                found.append(pid)
        return found


@contextlib.contextmanager
def running_ray() -> Iterator[RayCluster]:
    """A cluster without nodes yet, of which nothing is left when the block ends."""
    if not Path(sys.executable).with_name("ray").exists():
        raise RayUnavailable("Ray is not installed")
    folder = Path(tempfile.mkdtemp(prefix="wr-"))  # short: Ray keeps sockets below it
    port, client_port = free_ports(2)
    cluster = RayCluster(folder=folder, port=port, client_port=client_port)
    try:
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _command(pid: int) -> str:
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return ""


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
