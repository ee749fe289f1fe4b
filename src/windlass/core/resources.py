"""What a run asks of each node, and what nodes offer. Numbers only: who gets what is decided in `scheduling`."""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass.core.quantities import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """A request: `nodes` times the per-node amounts."""

    nodes: int = 1
    cpus: float = 1.0
    memory_bytes: int = 0
    gpus: int = 0
    gpu_type: str | None = None

    def describe(self) -> str:
        parts = [f"{self.cpus:g} CPU"]
        if self.gpus:
            parts.append(f"{self.gpus} {self.gpu_type or 'GPU'}")
        if self.memory_bytes:
            parts.append(format_size(self.memory_bytes))
        each = " + ".join(parts)
        return each if self.nodes == 1 else f"{self.nodes} nodes of {each}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine (or slice of one) that an engine can start processes on."""

    engine: str
    name: str
    cpus: float
    memory_bytes: int
    gpus: int = 0
    gpu_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """The part of one node that an attempt holds. `gpu_indices` are the node's own numbers."""

    node: str
    cpus: float
    memory_bytes: int
    gpu_indices: tuple[int, ...] = ()
    gpu_part: float = 1.0  # of each of these GPUs; less where several runs share one


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a whole gang goes: one share per node rank, in rank order."""

    engine: str
    shares: tuple[NodeShare, ...] = field(default=())
