"""`python -m windlass.testing.kubelet`: one node, or several in one process, until SIGTERM."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from windlass.engines.kubernetes.api import open_api
from windlass.testing.kubelet.node import Kubelet, Machine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--address-number", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--cpus", type=int, default=4)
    parser.add_argument("--memory", default="8Gi")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--hollow", action="store_true")
    given = parser.parse_args()
    labels = {"windlass.test/kubelet": given.name, **dict(label.split("=", 1) for label in given.label)}
    machines = [
        Machine(
            name=given.name if given.count == 1 else f"{given.name}-{number}",
            address=_address(given.address_number + number),
            cpus=given.cpus,
            memory=given.memory,
            gpus=given.gpus,
            labels=labels,
        )
        for number in range(given.count)
    ]
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    kubelet = Kubelet(
        open_api(kubeconfig=given.kubeconfig, context=None),
        machines,
        given.folder,
        hollow=given.hollow,
        name=given.name,
    )
    kubelet.run(stopping)


def _address(number: int) -> str:
    """Every node has an address of its own: the whole of 127.0.0.0/8 leads to this machine."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


if __name__ == "__main__":
    main()
