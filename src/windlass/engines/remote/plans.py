"""From a Launch to what a node's agent fetches from the server: `render_remote_plans`, pure.

Folders, addresses and devices are missing: the node that fetches a plan knows its own, and adds them. The keys are
those of `engines.local.plans` otherwise, so that one supervisor understands both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.engines.contract import Launch

VERSION = 1
SAMPLE_INTERVAL_S = 2.0


# What the server's own machine says of itself, and nodes elsewhere know better.
_OF_THE_MACHINE = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


def render_remote_plans(
    launch: Launch, *, inherit_path: bool = False, servers: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """One plan per node rank. With `inherit_path` ranks get the submitter's PATH: only where nodes are set up as the
    submitter's machine is. `servers` is the server's own environment: what ranks would have of it that describes its
    machine is left to their node."""
    shares = launch.placement.shares
    own = {name: value for name, value in (servers or {}).items() if name in _OF_THE_MACHINE}
    env = {name: value for name, value in launch.env.items() if own.get(name) != value}
    if inherit_path and launch.search_path is not None:
        env.setdefault("PATH", launch.search_path)
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
            "gpus": len(share.gpu_indices),
            "memory_limit_bytes": share.memory_bytes or None,
        }
        for rank, share in enumerate(shares)
    ]
