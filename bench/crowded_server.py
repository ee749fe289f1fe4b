"""`python -m bench.crowded_server`: a real server whose engine only pretends, so that it can hold a crowd of runs."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from windlass.core.clock import SystemClock
from windlass.core.resources import Node
from windlass.engines.contract import Observation
from windlass.server.main import serve
from windlass.server.settings import Settings
from windlass.testing.fake_engine import FakeCluster, FakeEngine


def simulated_nodes(count: int) -> tuple[Node, ...]:
    return tuple(
        Node(engine="fake", name=f"node-{number:05}", cpus=64.0, memory_bytes=512 << 30, gpus=8, gpu_type="h100")
        for number in range(count)
    )


NODES = simulated_nodes(16)


class BusyEngine(FakeEngine):
    """Its attempts use a little more with every look, as real ones do: nothing can be skipped as unchanged."""

    def poll(self, attempt_ids: Sequence[str]) -> Mapping[str, Observation]:
        now = time.time()
        usage = {"at": now, "cpu_percent": now % 100, "rss_bytes": 1 << 30, "gpus": [], "ranks": []}
        seen = super().poll(attempt_ids)
        return {key: replace(found, usage=usage) if found.usage else found for key, found in seen.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    settings = Settings.from_environ(os.environ, home=given.home, port=given.port)
    cluster = FakeCluster(nodes=simulated_nodes(int(os.environ.get("BENCH_NODES", len(NODES)))))
    return serve(
        settings, open_engines=lambda nudge: {"fake": BusyEngine(SystemClock(), cluster=cluster, notify=nudge)}
    )


if __name__ == "__main__":
    sys.exit(main())
