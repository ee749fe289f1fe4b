"""Metrics of the machines that a run uses, made of the samples its supervisors take: `system/cpu_percent`,
`system/gpu/0/utilization_percent`, `system/rank/3/rss_bytes`. Kept with the run's own, shown apart from them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from windlass.tracking.blocks import Logged

PREFIX = "system/"
SAMPLE_EVERY_S = 10.0
MOST_RANKS = 64  # that are told one by one; of more, the sums
MOST_NODES = 64

_WHOLE = ("cpu_percent", "rss_bytes", "cpu_seconds")
_OF_GPU = (
    "utilization_percent",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "pcie_in_bytes_per_s",
    "pcie_out_bytes_per_s",
)
_OF_RANK = ("cpu_percent", "rss_bytes")
_RATES = ("disk_read_bytes_per_s", "disk_write_bytes_per_s", "network_in_bytes_per_s", "network_out_bytes_per_s")
_DISK_USED = "disk_used_percent"
_OF_NODE = ("cpu_percent", "rss_bytes", *_RATES, _DISK_USED)
_LARGEST = 1e300
_Value = TypeVar("_Value")


def system_points(usage: Mapping[str, Any]) -> list[Logged]:
    """GPUs and ranks by their place among those of all nodes. Programs can write into their node's folder: what is no
    number is passed over."""
    at: Any = usage.get("at")
    if not _is_number(at) or not 0 <= at < 1e11:
        return []
    return [Logged(PREFIX + name, float(value), float(at), None) for name, value in _values(usage) if _is_number(value)]


def without_system(found: Mapping[str, _Value]) -> dict[str, _Value]:
    return {name: value for name, value in found.items() if not name.startswith(PREFIX)}


def _values(usage: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _WHOLE:
        yield name, usage.get(name)
    for number, gpu in enumerate(_rows(usage, "gpus")):
        for name in _OF_GPU:
            yield f"gpu/{number}/{name}", gpu.get(name)
    nodes = _rows(usage, "nodes")
    for name in _RATES:
        whose = "network" if name.startswith("network") else "host"
        # Once for each machine, though it be several nodes; older agents do not say where they are.
        rates = {str(node.get(whose, n)): node[name] for n, node in enumerate(nodes) if _is_number(node.get(name))}
        if rates:
            yield name, sum(rates.values())
    # Of all nodes the fullest: it is where the run will fail.
    yield _DISK_USED, max((node[_DISK_USED] for node in nodes if _is_number(node.get(_DISK_USED))), default=None)
    if 1 < len(nodes) <= MOST_NODES:
        yield from _each(nodes, "node", _OF_NODE)
    ranks = _rows(usage, "ranks")
    if 1 < len(ranks) <= MOST_RANKS:
        yield from _each(ranks, "rank", _OF_RANK)


def _each(rows: list[Mapping[str, Any]], what: str, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for row in rows:
        number = row.get(what)
        if type(number) is int and 0 <= number < 10**6:
            for name in names:
                yield f"{what}/{number}/{name}", row.get(name)


def _rows(usage: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = usage.get(name)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -_LARGEST < value < _LARGEST  # neither NaN nor what no float can hold
