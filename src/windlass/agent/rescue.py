"""Having what ranks left in the node's memory written to the disk, once their attempt has ended badly.

How is the affair of `windlass.job`, whose ranks leave the command for it beside their copies.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Mapping

from . import patterns, savers
from .files import read_json

TERMS = "terms.json"
# Of one that somebody has stopped: its grace is over, and clusters do not wait much longer than that.
_STOPPED_S = 5.0
_LOOK_EVERY_S = 0.01


def patience_s(plan: Mapping[str, Any], result: Mapping[str, Any]) -> float | None:
    """For how long the attempt's end may wait for it; None: there is nothing to be done."""
    if not plan.get("memory_dir") or int(plan["nnodes"]) != 1:
        return None  # on several nodes none has all copies, and each hears late that the attempt is over
    if result["reason"] in ("completed", "preempted", "launch_failed"):
        return None  # a machine that is to be given back does not wait
    if result["trouble"] in (patterns.NAN, patterns.EXPLODED):
        return None  # what is in memory is what it was stopped for
    return _STOPPED_S if result["reason"] in ("cancelled", "timeout") else savers.PATIENCE_S


def save_what_is_left(plan: Mapping[str, Any], env: Mapping[str, str], result: Mapping[str, Any]) -> None:
    """`env`: of a rank. All ranks and their savers are dead. Whatever goes wrong, the attempt has ended."""
    most_s = patience_s(plan, result)
    if most_s is None:
        return
    for path in _all_terms(str(plan["memory_dir"])):
        try:
            terms = read_json(path)
            if terms is not None:
                _run([str(word) for word in terms["argv"]], {**env, "RANK": "0"}, most_s)
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _all_terms(folder: str) -> list[str]:
    """One for each place on the disk that the run saves to."""
    try:
        blocks = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return []
    return [os.path.join(block, TERMS) for block in (folder, *blocks)]


def _run(argv: list[str], env: Mapping[str, str], most_s: float) -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1)]
        pid = os.posix_spawn(argv[0], argv, dict(env), file_actions=actions)
    finally:
        os.close(null)
    deadline = time.monotonic() + most_s
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)  # what it has written is no checkpoint, and is removed in time
            os.waitpid(pid, 0)
            return
        time.sleep(_LOOK_EVERY_S)
