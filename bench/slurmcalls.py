"""How often Windlass asks Slurm how things are, by the number of live runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench.harness import tell
from bench.places import SlurmPlace, server_for
from windlass.client import Client
from windlass.testing.slurm import SlurmCluster, running_slurm

_ASKING = ("squeue", "sinfo", "scontrol", "sacct")
_WATCH_S = 20.0
_PATIENCE_S = 120.0


class CountedPlace(SlurmPlace):
    """Commands go through programs that count them."""

    def __init__(self, cluster: SlurmCluster, bin_dir: Path) -> None:
        super().__init__(cluster)
        self._bin_dir = bin_dir

    def engine(self, folder: Path) -> dict[str, object]:
        return {**super().engine(folder), "bin_dir": str(self._bin_dir)}


def calls_a_minute(folder: Path, counts: Sequence[int]) -> dict[int, float]:
    """While so many runs go on and nothing begins or ends."""
    found: dict[int, float] = {}
    with running_slurm(nodes=8) as cluster:
        bin_dir, log = cluster.counting_commands(folder / "counting")
        place = CountedPlace(cluster, bin_dir)
        with server_for(place, folder / "calls") as server, Client(server.url, server.token) as client:
            running = 0
            for count in sorted(counts):
                for _ in range(count - running):
                    client.submit(command="sleep 1000", code=None, workdir="/tmp", resources={"cpus": 1})
                running = count
                _await_running(client, count)
                before = _count(log)
                time.sleep(_WATCH_S)
                found[count] = (_count(log) - before) * 60 / _WATCH_S
                tell(f"{count} runs: {found[count]:.0f} calls a minute")
            for run in client.list(state="running"):
                client.get(run.id).cancel(grace_s=0)
            place.settle()
    return found


def _await_running(client: Client, count: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while client.cluster().running < count or len(list(client.list(state="running"))) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {count} runs have started")
        time.sleep(0.2)
    time.sleep(2.0)


def _count(log: Path) -> int:
    calls = Counter(log.read_text().split())
    return sum(calls[name] for name in _ASKING)
