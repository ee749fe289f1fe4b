"""What this machine offers, and how it is divided into virtual nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.agent.nvml import Nvml
from windlass.core.errors import LaunchFailed
from windlass.core.names import unknown
from windlass.core.resources import Node
from windlass.engines.attributes import labels_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    cpus: float
    memory_bytes: int
    engine: str = "local"  # its name, and the stem of its nodes' names
    gpus: tuple[Mapping[str, Any], ...] = ()  # index, name, memory_bytes: in the driver's numbering
    nodes: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    price_per_hour: float = 0.0  # of all of it
    spot: bool = False

    @property
    def gpus_per_node(self) -> int:
        return len(self.gpus) // self.nodes

    def node_names(self) -> list[str]:
        return [self.engine] if self.nodes == 1 else [f"{self.engine}-{number}" for number in range(self.nodes)]

    def inventory(self) -> tuple[Node, ...]:
        return tuple(
            Node(
                engine=self.engine,
                name=name,
                cpus=self.cpus / self.nodes,
                memory_bytes=self.memory_bytes // self.nodes,
                gpus=self.gpus_per_node,
                gpu_type=_gpu_type(str(self.gpus[0]["name"])) if self.gpus_per_node else None,
                labels=labels_of(self.labels),
                price_per_hour=self.price_per_hour / self.nodes,
                spot=self.spot,
            )
            for name in self.node_names()
        )

    def gpus_of(self, node: str, indices: Sequence[int]) -> list[Mapping[str, Any]]:
        """The devices behind a node's own numbers."""
        names = self.node_names()
        if node not in names:
            raise LaunchFailed(unknown("node", node, names))
        wrong = [index for index in indices if not 0 <= index < self.gpus_per_node]
        if wrong:
            raise LaunchFailed(f"node {node} has no GPU {wrong[0]}; it has {self.gpus_per_node}")
        first = names.index(node) * self.gpus_per_node
        return [self.gpus[first + index] for index in indices]


def measure_machine(*, engine: str) -> Machine:
    return Machine(engine=engine, cpus=_cpus(), memory_bytes=_memory_bytes(), gpus=_gpus(os.environ))


def _cpus() -> float:
    allowed = float(len(os.sched_getaffinity(0)))
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        return min(allowed, int(quota) / int(period))
    return allowed


def _memory_bytes() -> int:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def _gpus(environ: Mapping[str, str]) -> tuple[Mapping[str, Any], ...]:
    """Those that the server itself may see: an administrator can keep some back with CUDA_VISIBLE_DEVICES."""
    session = Nvml.open()
    if session is None:
        return ()
    found = session.devices()
    session.close()
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(found)
    wanted = {word.strip() for word in visible.split(",")}
    return tuple(gpu for gpu in found if str(gpu["index"]) in wanted)


def _gpu_type(name: str) -> str:
    """`NVIDIA H100 80GB HBM3` is an h100 to whoever asks for one."""
    words = [word for word in name.replace("-", " ").split() if word.upper() not in ("NVIDIA", "TESLA", "GEFORCE")]
    return words[0].lower() if words else name.lower()


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""  # no such control group
