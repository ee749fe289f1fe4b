"""From a Launch to what each local node's supervisor reads: `render_node_plans`, pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.engines.contract import Launch
from windlass.engines.folders.plans import node_dir, render_common_plan
from windlass.engines.local.machine import Machine

_ADDRESS = "127.0.0.1"


def render_node_plans(
    launch: Launch, *, home: Path, blobs_dir: Path, machine: Machine, notify_socket: str | None, master_port: int
) -> list[dict[str, Any]]:
    """One plan per node rank. `master_port` 0 leaves the choice to the supervisor, which only a single one can make."""
    shares = launch.placement.shares
    gpus = [machine.gpus_of(share.node, share.gpu_indices) for share in shares]
    common = {
        **render_common_plan(launch, home=home, blobs_dir=blobs_dir, host_env=launch.host_env),
        "node_addrs": [_ADDRESS for _ in shares],
        "node_gpus": machine.gpus_per_node,
        "master_addr": _ADDRESS,
        "master_port": master_port,
        "notify_socket": notify_socket,
    }
    return [
        {
            **common,
            "node_rank": rank,
            "node_name": share.node,
            "node_dir": str(node_dir(home, launch.attempt_id, rank)),
            "gpu_indices": [gpu["index"] for gpu in gpus[rank]],
            "gpus": [dict(gpu) for gpu in gpus[rank]],
            "memory_limit_bytes": share.memory_bytes or None,
        }
        for rank, share in enumerate(shares)
    ]
