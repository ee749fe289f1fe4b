"""From a Launch to what a node's agent fetches from the server: `render_remote_plans`, pure.

Folders, addresses and devices are missing: the node that fetches a plan knows its own, and adds them. The keys are
those of `engines.local.plans` otherwise, so that one supervisor understands both.
"""

from __future__ import annotations

from typing import Any

from windlass.engines.contract import Launch
from windlass.engines.folders.plans import (
    render_hang,
    render_in_place,
    render_log_limit,
    render_resumed,
    render_roles,
    render_tensorboard,
)

VERSION = 1
SAMPLE_INTERVAL_S = 2.0


def render_remote_plans(launch: Launch, *, inherit_path: bool = False) -> list[dict[str, Any]]:
    """One plan per node rank. With `inherit_path` ranks get PATH and its like from the submitter's shell: only where
    nodes are set up as the submitter's machine is. The rest of their environment is their node's."""
    shares = launch.placement.shares
    env: dict[str, str] = {}
    if inherit_path:
        env |= launch.origin_env
        env |= {"PATH": launch.search_path} if launch.search_path is not None else {}
    env |= launch.env
    common = {
        "version": VERSION,
        "run_id": launch.run_id,
        "attempt_id": launch.attempt_id,
        "attempt": launch.attempt,
        "nnodes": len(shares),
        "node_names": [share.node for share in shares],
        "workers_per_node": launch.workers_per_node,
        "self_launching": launch.self_launching,
        "argv": list(launch.argv),
        **render_roles(launch),
        **render_resumed(launch),
        **render_in_place(launch),
        **render_hang(launch),
        **render_log_limit(launch),
        **render_tensorboard(launch),
        "env": env,
        "code_digest": launch.code_digest if launch.workdir is None else None,
        "workdir": launch.workdir,
        "timeout_s": launch.timeout_s,
        "grace_s": launch.grace_s,
        "sample_interval_s": SAMPLE_INTERVAL_S,
    }
    return [
        {
            **common,
            "node_rank": rank,
            "node_name": share.node,
            "gpus": 0 if launch.tpus else len(share.gpu_indices),
            "memory_limit_bytes": share.memory_bytes or None,
        }
        for rank, share in enumerate(shares)
    ]
