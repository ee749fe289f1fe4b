"""What an hour of each resource costs. Pure: a price book comes in, dollars go out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from windlass.core.resources import Node, NodeShare, Placement

# Typical on-demand cloud prices, in dollars an hour; a server's own price book replaces them.
DEFAULT_CPU_USD = 0.04
DEFAULT_GPU_USD: Mapping[str, float] = {
    "a100": 2.68,
    "a10g": 1.01,
    "b200": 6.00,
    "h100": 3.90,
    "h200": 4.50,
    "l4": 0.80,
    "l40s": 1.90,
    "mi300x": 3.50,
    "rtx4090": 0.50,
    "t4": 0.35,
    "tpu:v4": 3.22,
    "tpu:v5e": 1.20,
    "tpu:v5p": 4.20,
    "tpu:v6e": 2.70,
    "v100": 2.48,
}
UNKNOWN_GPU_USD = 2.00


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    cpu_usd: float = DEFAULT_CPU_USD
    gpu_usd: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_GPU_USD))

    def gpu_price(self, gpu_type: str | None) -> float:
        """Of the longest name that `gpu_type` begins with: an `l40s` is no `l4`."""
        wanted = (gpu_type or "").lower()
        known = max((name for name in self.gpu_usd if wanted.startswith(name)), key=len, default=None)
        return UNKNOWN_GPU_USD if known is None else self.gpu_usd[known]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    usd: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            cpu_hours=self.cpu_hours + other.cpu_hours,
            gpu_hours=self.gpu_hours + other.gpu_hours,
            usd=self.usd + other.usd,
        )


def spent_on(placement: Placement, usd_per_hour: float, seconds: float) -> Spent:
    """What holding `placement` for so long comes to: allotted resources, used or not."""
    hours = max(0.0, seconds) / 3600
    return Spent(
        cpu_hours=hours * sum(share.cpus for share in placement.shares),
        gpu_hours=hours * sum(map(_gpus, placement.shares)),
        usd=hours * usd_per_hour,
    )


def hourly_usd(
    placement: Placement, gpu_type: str | None, prices: PriceBook, nodes: Mapping[str, Node] | None = None
) -> float:
    """Of all shares together. `gpu_type`: what was asked for; `nodes`: by name, those that are known."""
    known = nodes or {}
    return sum(_hourly_usd(share, known.get(share.node), gpu_type, prices) for share in placement.shares)


def _hourly_usd(share: NodeShare, node: Node | None, gpu_type: str | None, prices: PriceBook) -> float:
    """A node's own price is divided among its GPUs, if it has any: the CPUs beside them are part of it. Who takes none
    of them pays for CPUs as anywhere else."""
    gpus = _gpus(share)
    if node is not None and node.price_per_hour and (gpus or not node.gpus):
        part = (
            gpus / node.gpus
            if node.gpus
            else max(_part(share.cpus, node.cpus), _part(share.memory_bytes, node.memory_bytes))
        )
        return node.price_per_hour * min(1.0, part)
    type_there = node.gpu_type if node is not None and node.gpu_type else gpu_type
    return share.cpus * prices.cpu_usd + gpus * prices.gpu_price(type_there)


def _gpus(share: NodeShare) -> float:
    return len(share.gpu_indices) * share.gpu_part


def _part(held: float, there: float) -> float:
    return held / there if there else 0.0
