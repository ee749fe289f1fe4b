"""From a Launch to what the supervisors of a Slurm job read: `render_slurm_plans`, pure."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from windlass.engines.contract import Launch
from windlass.engines.folders.plans import attempt_dir, node_dir, render_common_plan

_PREFIX = "windlass"


def token_prefix(shared_dir: Path) -> str:
    """Jobs of another server, over another folder, are other people's jobs."""
    return f"{_PREFIX}:{hashlib.sha256(str(shared_dir).encode()).hexdigest()[:12]}:"


def token_of(shared_dir: Path, attempt_id: str) -> str:
    """What the attempt's job is known by. Slurm uses the ids of lost jobs again; this is never used again."""
    return token_prefix(shared_dir) + attempt_id


def blobs_dir(shared_dir: Path) -> Path:
    return shared_dir / "cache" / "blobs"


def render_slurm_plans(
    launch: Launch, *, shared_dir: Path, timeout_s: float | None, rendezvous_s: float
) -> list[dict[str, Any]]:
    """One plan per node rank. Addresses and devices are the nodes' own to find."""
    folder = attempt_dir(shared_dir, launch.attempt_id)
    common = {
        **render_common_plan(launch, home=shared_dir, blobs_dir=blobs_dir(shared_dir)),
        "timeout_s": timeout_s,
        "node_addrs": ["127.0.0.1"],
        "node_gpus": 0,
        "gpus_from_environment": True,
        "inherits_environment": True,  # of the job: its home, what a prolog sets, what an image brings
        "signalled_together": True,
        "master_addr": "127.0.0.1",
        "master_port": 0,
        "notify_socket": None,
        "rendezvous": None,
    }
    if len(launch.placement.shares) > 1:
        common["rendezvous"] = {"folder": str(folder / "rendezvous"), "patience_s": rendezvous_s}
    return [
        {
            **common,
            "node_rank": rank,
            "node_name": share.node,
            "node_dir": str(node_dir(shared_dir, launch.attempt_id, rank)),
            "gpu_indices": [],
            "gpu_count": len(share.gpu_indices),
            "gpus": [],
            "cpus": share.cpus,
            "memory_limit_bytes": share.memory_bytes or None,
        }
        for rank, share in enumerate(launch.placement.shares)
    ]
