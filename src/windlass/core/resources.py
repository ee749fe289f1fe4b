"""What a run asks of each node, and what nodes offer. Numbers only: who gets what is decided in `scheduling`."""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass.core.accelerators import title_of
from windlass.core.quantities import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """A request: `nodes` times the per-node amounts."""

    nodes: int = 1
    cpus: float = 1.0
    memory_bytes: int = 0
    gpus: float = 0  # whole, or a part of one: 0.5; or TPUs, if that is what the type says
    gpu_type: str | None = None  # the one that is liked most; see `core.accelerators`
    gpu_types: tuple[str, ...] = ()  # where several would do, all of them in order of preference
    least_gpus: int | None = None  # where fewer would do
    labels: frozenset[str] = frozenset()  # `key=value`, that a node must have
    spot_ok: bool = True  # may go to nodes that can be taken away

    @property
    def types(self) -> tuple[str | None, ...]:
        """Of GPUs, in order of preference; None: any."""
        if not self.gpus:
            return (None,)
        return self.gpu_types or (self.gpu_type,)

    @property
    def amounts(self) -> tuple[float, ...]:
        """Of GPUs, the most first."""
        if self.least_gpus is None or self.least_gpus >= self.gpus:
            return (self.gpus,)
        return tuple(range(int(self.gpus), self.least_gpus - 1, -1))

    def describe(self) -> str:
        parts = [f"{self.cpus:g} CPU"]
        if self.gpus:
            least = f"{self.least_gpus} to " if len(self.amounts) > 1 else ""
            parts.append(f"{least}{self.gpus:g} {' or '.join(map(title_of, self.types))}")
        if self.memory_bytes:
            parts.append(format_size(self.memory_bytes))
        each = " + ".join(parts)
        if self.labels:
            each += f" with {', '.join(sorted(self.labels))}"
        if not self.spot_ok:
            each += ", not on spot"
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
    labels: frozenset[str] = frozenset()  # `key=value`
    topology: tuple[str, ...] = ()  # from the widest to the nearest: zone, rack, switch
    price_per_hour: float = 0.0  # dollars; 0: not known
    spot: bool = False  # can be taken away


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
