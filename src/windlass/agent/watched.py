"""Starting the process that takes what a run's first rank saves by itself into the catalogue: `checkpoint.watch`.

It belongs to `windlass.job`, which a node may not have: then the run goes on without it, and its record says so.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Mapping

from . import layout

_START = (
    "import sys; sys.path.insert(0, sys.argv[3]); "
    "from windlass.job.checkpoint.watching import main; main(int(sys.argv[1]), sys.argv[2])"
)


def start_watcher(env: Mapping[str, str], cwd: str, pid: int) -> int | None:
    """Beside the rank that `pid` is, if its run wants one; its process id. It ends by itself after the rank."""
    if not _wants(env):
        return None
    root = _root()
    if root is None:
        _alert(env, "nothing is watched: this node's Python, %s, has no windlass.job" % sys.executable)
        return None
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", _START, str(pid), cwd, root],
            dict(env),
            file_actions=[(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1)],
            setsid=True,  # a signal to the rank's group is not for it
        )
    except OSError as error:
        _alert(env, "nothing is watched: %s" % error)
        return None
    finally:
        os.close(null)


def _root() -> str | None:
    """The folder that `windlass.job` is found in: beside this file, or where Python has it installed."""
    import importlib.util

    beside = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.isdir(os.path.join(beside, "windlass", "job")):
        return beside
    if sys.flags.no_site:  # it starts sooner without what is installed
        import site

        site.main()
    try:
        spec = importlib.util.find_spec("windlass.job")
    except ModuleNotFoundError:
        return None
    return (
        None if spec is None or spec.origin is None else os.path.dirname(os.path.dirname(os.path.dirname(spec.origin)))
    )


def _wants(env: Mapping[str, str]) -> bool:
    try:
        return bool(json.loads(env.get("WINDLASS_CHECKPOINT") or "{}").get("watch"))
    except (ValueError, AttributeError):
        return False


def _alert(env: Mapping[str, str], message: str) -> None:
    """As `windlass.job` would write it. A full disk costs the alert, not the run."""
    line = {"t": round(time.time(), 6), "s": None, "a": {"kind": "checkpoint-failed", "message": message}}
    path = os.path.join(env["WINDLASS_NODE_DIR"], layout.metrics_spool(int(env.get("RANK", "0"))))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, json.dumps(line).encode() + b"\n")
        finally:
            os.close(fd)
    except OSError:
        sys.stderr.write(message + "\n")
