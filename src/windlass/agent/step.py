"""A supervisor as a task of a Slurm step: which node it is, what it was given, and which life of the job it belongs to."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping

from . import layout
from .files import read_json

SECRETS = "WINDLASS_SECRETS"


def node_dir(attempt_dir: str, environ: Mapping[str, str]) -> str | None:
    """The folder of the node this task is on, by the node's name: Slurm orders nodes its own way. None for an attempt
    that is over, or a node that is none of its."""
    plan = read_json(os.path.join(attempt_dir, "node-0", layout.PLAN))
    if plan is None:
        return None
    names = plan["node_names"]
    own = environ.get("SLURMD_NODENAME", "")
    if own in names:
        return os.path.join(attempt_dir, "node-%d" % names.index(own))
    return os.path.join(attempt_dir, "node-0") if len(names) == 1 else None


def take_secrets(environ: "os._Environ[str]") -> dict[str, str]:
    """Once: what the supervisor starts besides the ranks must not see them."""
    text = environ.pop(SECRETS, "")
    return dict(json.loads(text)) if text else {}


def job_life(environ: Mapping[str, str]) -> dict[str, Any]:
    """A job that Slurm starts again keeps its id; the count tells its lives apart."""
    return {"job_id": environ.get("SLURM_JOB_ID", ""), "restarts": int(environ.get("SLURM_RESTART_COUNT") or 0)}
