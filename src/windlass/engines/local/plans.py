"""From a Launch to what each node's supervisor reads: `render_node_plans`, pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.engines.contract import Launch
from windlass.engines.local.machine import Machine

VERSION = 1
SAMPLE_INTERVAL_S = 2.0
_ADDRESS = "127.0.0.1"


def run_dir(home: Path, run_id: str) -> Path:
    return home / "runs" / run_id


def attempt_dir(home: Path, attempt_id: str) -> Path:
    """Attempts are named `<run>.<number>`."""
    run_id, _, number = attempt_id.rpartition(".")
    return run_dir(home, run_id) / "attempts" / number


def render_node_plans(
    launch: Launch, *, home: Path, blobs_dir: Path, machine: Machine, notify_socket: str | None, master_port: int
) -> list[dict[str, Any]]:
    """One plan per node rank. `master_port` 0 leaves the choice to the supervisor, which only a single one can make.
    Secrets are no part of a plan: plans are written to disk."""
    folder = run_dir(home, launch.run_id)
    shares = launch.placement.shares
    gpus = [machine.gpus_of(share.node, share.gpu_indices) for share in shares]
    env = dict(launch.env)
    if launch.search_path is not None:
        env.setdefault("PATH", launch.search_path)
    common = {
        "version": VERSION,
        "run_id": launch.run_id,
        "attempt_id": launch.attempt_id,
        "attempt": launch.attempt,
        "nnodes": len(shares),
        "node_names": [share.node for share in shares],
        "node_addrs": [_ADDRESS for _ in shares],
        "node_gpus": machine.gpus_per_node,
        "workers_per_node": launch.workers_per_node,
        "self_launching": launch.self_launching,
        "argv": list(launch.argv),
        "env": env,
        "run_dir": str(folder),
        "workdir": launch.workdir or str(folder / "work"),
        "code": _code(launch, blobs_dir),
        "cache_dir": str(home / "cache" / "environments"),
        "timeout_s": launch.timeout_s,
        "grace_s": launch.grace_s,
        "sample_interval_s": SAMPLE_INTERVAL_S,
        "master_addr": _ADDRESS,
        "master_port": master_port,
        "notify_socket": notify_socket,
    }
    return [
        {
            **common,
            "node_rank": rank,
            "node_name": share.node,
            "node_dir": str(attempt_dir(home, launch.attempt_id) / f"node-{rank}"),
            "gpu_indices": [gpu["index"] for gpu in gpus[rank]],
            "gpus": [dict(gpu) for gpu in gpus[rank]],
            "memory_limit_bytes": share.memory_bytes or None,
        }
        for rank, share in enumerate(shares)
    ]


def _code(launch: Launch, blobs_dir: Path) -> dict[str, str] | None:
    if launch.workdir is not None or launch.code_digest is None:
        return None
    digest = launch.code_digest
    return {"manifest": str(blobs_dir / digest[:2] / digest), "blobs": str(blobs_dir)}
