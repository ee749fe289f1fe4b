"""`python -m bench.crowded_server`: a real server whose engine only pretends, so that it can hold a crowd of runs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from windlass.core.clock import SystemClock
from windlass.core.resources import Node
from windlass.server.main import serve
from windlass.server.settings import Settings
from windlass.testing.fake_engine import FakeCluster, FakeEngine

NODES = tuple(
    Node(engine="fake", name=f"node-{number:02}", cpus=64.0, memory_bytes=512 << 30, gpus=8, gpu_type="h100")
    for number in range(16)
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    settings = Settings.from_environ(os.environ, home=given.home, port=given.port)
    cluster = FakeCluster(nodes=NODES)
    return serve(
        settings, open_engines=lambda nudge: {"fake": FakeEngine(SystemClock(), cluster=cluster, notify=nudge)}
    )


if __name__ == "__main__":
    sys.exit(main())
