"""What goes over a node's disks and network, and how full the disk of its folder is. Of the whole node, whoever causes
it: the kernel does not say for which process a byte came.
"""

from __future__ import annotations

import os
from typing import Mapping

_SECTOR_BYTES = 512  # in the kernel's tables, whatever the disk's own is
# Parts of disks, and what is made of disks, would count twice; what lies in memory is no disk.
_NO_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
_OWN = "lo"


class Rates:
    """How fast counters grow. Nothing of one that is seen for the first time, or that has begun anew."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._last_at = 0.0

    def of(self, counters: Mapping[str, int], now: float) -> dict[str, float]:
        passed_s = now - self._last_at
        grown = {name: value - self._last[name] for name, value in counters.items() if name in self._last}
        self._last, self._last_at = dict(counters), now
        if passed_s <= 0:
            return {}
        return {name + "_per_s": round(more / passed_s, 1) for name, more in grown.items() if more >= 0}


class Traffic:
    def __init__(self, folder: str, proc: str = "/proc", sys: str = "/sys") -> None:
        self._folder, self._proc, self._sys = folder, proc, sys
        self._rates = Rates()

    def sample(self, now: float) -> dict[str, float]:
        """By name, since the last call; what the machine does not tell is left out. `now` is of a steady clock."""
        found = self._rates.of({**self._disks(), **self._network()}, now)
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return found
        used = disk.f_blocks - disk.f_bfree
        if used + disk.f_bavail > 0:  # as `df` has it: without what is kept for root
            found["disk_used_percent"] = round(100.0 * used / (used + disk.f_bavail), 2)
        return found

    def _disks(self) -> dict[str, int]:
        try:
            whole = [name for name in os.listdir(os.path.join(self._sys, "block")) if not name.startswith(_NO_DISKS)]
            with open(os.path.join(self._proc, "diskstats")) as file:
                rows = {fields[2]: fields for fields in map(str.split, file)}
            read = sum(int(rows[name][5]) for name in whole if name in rows)
            written = sum(int(rows[name][9]) for name in whole if name in rows)
        except (OSError, ValueError, IndexError):
            return {}
        return {"disk_read_bytes": read * _SECTOR_BYTES, "disk_write_bytes": written * _SECTOR_BYTES} if whole else {}

    def _network(self) -> dict[str, int]:
        """Of devices alone, where there are any: bonds, bridges and the like would count their bytes again. A pod has
        none of its own."""
        try:
            with open(os.path.join(self._proc, "net", "dev")) as file:
                rows = [line.partition(":") for line in file if ":" in line]
            counters = {name.strip(): numbers.split() for name, _, numbers in rows if name.strip() != _OWN}
            devices = {name: found for name, found in counters.items() if self._is_device(name)} or counters
            received = sum(int(fields[0]) for fields in devices.values())
            sent = sum(int(fields[8]) for fields in devices.values())
        except (OSError, ValueError, IndexError):
            return {}
        return {"network_in_bytes": received, "network_out_bytes": sent}

    def _is_device(self, name: str) -> bool:
        return os.path.exists(os.path.join(self._sys, "class", "net", name, "device"))
