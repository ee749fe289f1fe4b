"""The agent's two commands. Both leave their starter at once: what they do must not depend on its life."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from typing import Sequence

from .ranks import Step, fork
from .supervisor import supervise
from .warm import Launcher


def start(arguments: Sequence[str]) -> Step | None:
    """The first step, in a process of its own; None in the one that was started."""
    options = _parser().parse_args(arguments)
    if options.command == "supervise":
        line = sys.stdin.readline()
        secrets = json.loads(line) if line.strip() else {}
        return functools.partial(supervise, options.node_dir, secrets, None) if _detach() else None
    if not _detach():
        return None
    os.setsid()
    launcher = Launcher(
        fd=options.fd,
        path=options.socket,
        interpreter=options.interpreter,
        preimport=[name for name in options.preimport.split(",") if name],
        idle_s=options.idle_s,
    )
    return launcher.serve


def _detach() -> bool:
    """Whether this is the process that goes on. Its starter can wait for the other one, which ends now."""
    return fork() == 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="windlass-agent", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    single = commands.add_parser("supervise", help="run the plan in a node's folder; secrets as JSON on stdin")
    single.add_argument("node_dir")
    warm = commands.add_parser("warm", help="fork supervisors on request, from an interpreter with modules loaded")
    warm.add_argument("--fd", type=int, required=True, help="the listening socket, inherited")
    warm.add_argument("--socket", required=True, help="its path; the launcher ends when the file is gone")
    warm.add_argument("--interpreter", default="", help="whose scripts may run in place; none: all are executed")
    warm.add_argument("--preimport", default="", help="modules to load, separated by commas")
    warm.add_argument("--idle-s", type=float, default=1800.0)
    return parser
