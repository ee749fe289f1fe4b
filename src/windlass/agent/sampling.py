"""How much processor, memory and GPU the ranks use, and what their node reads and sends. Cheap enough to run beside
them all the time."""

from __future__ import annotations

import time
from typing import Any, Mapping, NamedTuple, Sequence

from . import kernel
from .nvml import Nvml
from .traffic import Rates, Traffic

# Looking for children that other threads than the first have started costs a file per thread: done now and then.
_ALL_THREADS_EVERY = 5


class _Tree(NamedTuple):
    cpu_s: float
    rss_bytes: int
    threads: int
    pids: tuple[int, ...]


class Sampler:
    def __init__(self, gpu_indices: Sequence[int], *, folder: str, node: int) -> None:
        """`folder`: how full its disk is will be told. `node`: its number in the gang."""
        self._gpu_indices = tuple(gpu_indices)
        # Nodes of a gang may be on one machine, and each tells what goes over all of its disks and network.
        self._node = {"node": node, "host": kernel.boot_id(), "network": kernel.network_id()}
        self._traffic = Traffic(folder)
        self._pcie = {index: Rates() for index in self._gpu_indices}
        self._nvml: Nvml | None = None
        self._count = 0
        self._extra: dict[int, tuple[int, ...]] = {}
        self._last_cpu_s: dict[int, float] = {}
        self._last_at = time.monotonic()
        self.peak_rss_bytes = 0
        self.cpu_s = 0.0
        self.peak_gpu_memory_bytes = 0

    def open(self) -> None:
        self._nvml = Nvml.open() if self._gpu_indices else None

    def close(self) -> None:
        """Before ranks are forked: the driver's library would be theirs too, with files that they do not have."""
        if self._nvml is not None:
            self._nvml.close()
        self._nvml = None

    def sample(self, ranks: Mapping[int, int]) -> dict[str, Any]:
        """`ranks` maps the living ranks to their pids. The result is what usage.json holds."""
        every_thread = self._count % _ALL_THREADS_EVERY == 0
        self._count += 1
        now = time.monotonic()
        elapsed_s = max(now - self._last_at, 1e-3)
        self._last_at = now
        rows: list[dict[str, Any]] = []
        total_rss_bytes = 0
        for rank, pid in sorted(ranks.items()):
            tree = self._tree(pid, every_thread)
            grown_s = max(0.0, tree.cpu_s - self._last_cpu_s.get(pid, 0.0))
            self._last_cpu_s[pid] = tree.cpu_s
            self.cpu_s += grown_s
            total_rss_bytes += tree.rss_bytes
            rows.append(
                {
                    "rank": rank,
                    "pid": pid,
                    "cpu_percent": round(100 * grown_s / elapsed_s, 1),
                    "rss_bytes": tree.rss_bytes,
                    "threads": tree.threads,
                }
            )
        self.peak_rss_bytes = max(self.peak_rss_bytes, total_rss_bytes)
        cpu_percent = round(sum(row["cpu_percent"] for row in rows), 1)
        node = {**self._node, "cpu_percent": cpu_percent, "rss_bytes": total_rss_bytes}
        return {
            "at": time.time(),
            "cpu_percent": cpu_percent,
            "rss_bytes": total_rss_bytes,
            "peak_rss_bytes": self.peak_rss_bytes,
            "cpu_seconds": round(self.cpu_s, 3),
            "gpus": self._gpus(now),
            "ranks": rows,
            "nodes": [{**node, **self._traffic.sample(now)}],
        }

    def memory_bytes(self, pids: Sequence[int]) -> int:
        """Resident memory of the trees below `pids`; shared pages count for each user, so it is an upper bound."""
        return sum(self._tree(pid, False).rss_bytes for pid in pids)

    def exact_memory_bytes(self, pids: Sequence[int]) -> int:
        return sum(kernel.pss_bytes(member) for pid in pids for member in self._tree(pid, True).pids)

    def peaks(self) -> dict[str, Any]:
        return {
            "peak_rss_bytes": self.peak_rss_bytes,
            "cpu_seconds": round(self.cpu_s, 3),
            "peak_gpu_memory_bytes": self.peak_gpu_memory_bytes,
        }

    def _tree(self, root: int, every_thread: bool) -> _Tree:
        found = set(kernel.descendants(root, main_thread_only=not every_thread))
        if every_thread:
            self._extra[root] = tuple(found)
        else:
            found.update(self._extra.get(root, ()))
        stats = [item for item in map(kernel.stat, (root, *found)) if item is not None]
        return _Tree(
            cpu_s=sum(item.cpu_s for item in stats),
            rss_bytes=sum(item.rss_bytes for item in stats),
            threads=sum(item.threads for item in stats),
            pids=tuple(item.pid for item in stats),
        )

    def _gpus(self, now: float) -> list[dict[str, Any]]:
        if self._nvml is None:
            return []
        found = [
            {**self._nvml.sample(index), **self._pcie[index].of(self._nvml.pcie_bytes(index), now)}
            for index in self._gpu_indices
        ]
        used = sum(gpu.get("memory_used_bytes", 0) for gpu in found)
        self.peak_gpu_memory_bytes = max(self.peak_gpu_memory_bytes, used)
        return found
