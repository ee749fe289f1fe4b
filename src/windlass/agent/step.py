"""A supervisor as a task of a Slurm step: which node it is, what it was given, which life of the job it belongs to, and
the keeper above it, which leaves nothing behind should the supervisor be killed: not every Slurm finds orphans.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from typing import Any, Mapping

from . import kernel, layout
from .files import read_json
from .ranks import Step, fork
from .supervisor import supervise

SECRETS = "WINDLASS_SECRETS"
_PROBE_PATIENCE_S = 5.0
_KILL_PATIENCE_S = 5.0


def start(attempt_dir: str) -> Step | None:
    """In the supervisor's process, its first step; the keeper ends in here."""
    folder = node_dir(attempt_dir, os.environ)
    if folder is None:
        return None
    secrets = take_secrets(os.environ)
    kernel.adopt_orphans()
    keeper = os.getpid()
    pid = fork()
    if pid:
        _keep(pid, _watch_cloud(folder))
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != keeper:  # it died before the line above
        return None
    return functools.partial(supervise, folder, secrets, None, job_life(os.environ))


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


def _watch_cloud(folder: str) -> int | None:
    """A process that listens for the cloud's notices, where the node says that there may be some."""
    if not os.environ.get("WINDLASS_SPOT_NOTICES"):
        return None
    from . import spot  # HTTP takes long to load, and most have no use for it

    keeper = os.getpid()
    pid = fork()
    if pid:
        return pid
    try:
        kernel.die_with_parent(signal.SIGKILL)
        if os.getppid() == keeper:
            spot.watch(folder, os.environ)
    finally:
        os._exit(0)


def _keep(supervisor: int, aside: int | None) -> None:
    """Until the supervisor has ended. Signals are its business; some of Slurm's reach a job's first process only."""

    def pass_on(number: int, _frame: object) -> None:
        try:
            os.kill(supervisor, number)
        except ProcessLookupError:
            pass  # it has just ended

    for number in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, pass_on)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    kernel.set_process_name("windlass-keeper")
    status = None
    while status is None:
        pid, ended = os.wait()
        if pid == supervisor:
            status = ended
    if aside is not None:
        _kill([aside])
    # After an orderly end only the probe can be left, which is short and of use.
    deadline = time.monotonic() + (_PROBE_PATIENCE_S if status == 0 else 0.0)
    while kernel.descendants(os.getpid()) and time.monotonic() < deadline + _KILL_PATIENCE_S:
        if time.monotonic() >= deadline:
            _kill(kernel.descendants(os.getpid()))
        _reap()
        time.sleep(0.01)
    sys.stderr.flush()
    os._exit(0 if status == 0 else 1)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue  # gone already, or a set-uid program that is not ours to kill


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
