"""What plans for nodes with a folder have in common, and where those folders lie. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.agent.hang import AUTO
from windlass.engines.contract import Launch

VERSION = 1
SAMPLE_INTERVAL_S = 2.0


def run_dir(home: Path, run_id: str) -> Path:
    return home / "runs" / run_id


def attempt_dir(home: Path, attempt_id: str) -> Path:
    """Attempts are named `<run>.<number>`."""
    run_id, _, number = attempt_id.rpartition(".")
    return run_dir(home, run_id) / "attempts" / number


def node_dir(home: Path, attempt_id: str, rank: int) -> Path:
    return attempt_dir(home, attempt_id) / f"node-{rank}"


def render_common_plan(
    launch: Launch, *, home: Path, blobs_dir: Path, host_env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What every node of the attempt is told alike. Secrets are no part of a plan: plans are written to disk. An image
    has paths of its own, so that nothing of the submitter's shell is for it."""
    folder = run_dir(home, launch.run_id)
    env = dict(host_env or {})
    if launch.image is None:
        env |= launch.origin_env
        env |= {"PATH": launch.search_path} if launch.search_path is not None else {}
    env["WINDLASS_CHECKPOINT_DIR"] = str(folder / "checkpoints")  # the same for all attempts of the run
    env |= launch.env
    return {
        "version": VERSION,
        "run_id": launch.run_id,
        "attempt_id": launch.attempt_id,
        "attempt": launch.attempt,
        "nnodes": len(launch.placement.shares),
        "node_names": [share.node for share in launch.placement.shares],
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
        "run_dir": str(folder),
        "workdir": launch.workdir or str(folder / "work"),
        "code": _code(launch, blobs_dir),
        "cache_dir": str(home / "cache" / "environments"),
        "timeout_s": launch.timeout_s,
        "grace_s": launch.grace_s,
        "sample_interval_s": SAMPLE_INTERVAL_S,
    }


def render_log_limit(launch: Launch) -> dict[str, Any]:
    """Nothing where there is none."""
    return {"log_limit_bytes": launch.log_limit_bytes} if launch.log_limit_bytes is not None else {}


def render_tensorboard(launch: Launch) -> dict[str, Any]:
    """Nothing where the supervisor is to look for event files by itself."""
    return {"tensorboard": launch.tensorboard} if launch.tensorboard is not True else {}


def render_roles(launch: Launch) -> dict[str, Any]:
    """Nothing for a gang whose processes all do the same."""
    return {"roles": [{**asdict(role), "argv": list(role.argv)} for role in launch.roles]} if launch.roles else {}


def render_resumed(launch: Launch) -> dict[str, Any]:
    """Nothing for a run that was never resumed."""
    return {"first_attempt": launch.first_attempt} if launch.first_attempt > 1 else {}


def render_in_place(launch: Launch) -> dict[str, Any]:
    """Nothing where the first failure of a rank ends the attempt."""
    return {"recovery": asdict(launch.in_place)} if launch.in_place is not None else {}


def render_hang(launch: Launch) -> dict[str, Any]:
    """Nothing where the supervisor is to learn by itself what is too long."""
    return {"hang": launch.hang} if launch.hang != AUTO else {}


def _code(launch: Launch, blobs_dir: Path) -> dict[str, str] | None:
    if launch.workdir is not None or launch.code_digest is None:
        return None
    digest = launch.code_digest
    return {"manifest": str(blobs_dir / digest[:2] / digest), "blobs": str(blobs_dir)}
