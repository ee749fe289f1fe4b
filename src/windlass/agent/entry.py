"""The agent's commands. Those of one machine leave their starter at once: what they do must not depend on its life."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from typing import Sequence

from . import step
from .ranks import Step, fork
from .supervisor import supervise
from .warm import Launcher


def start(arguments: Sequence[str]) -> Step | None:
    """The first step, in a process of its own; None in the one that was started."""
    options = _parser().parse_args(arguments)
    if options.command in ("relay", "spot"):
        _stay(options)
        return None
    if options.command == "supervise":
        line = sys.stdin.readline()
        secrets = json.loads(line) if line.strip() else {}
        return functools.partial(supervise, options.node_dir, secrets, None) if _detach() else None
    if options.command == "step":
        return step.start(options.attempt_dir)
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


def _stay(options: argparse.Namespace) -> None:
    """What is bound to its starter. Imported here: HTTP takes long to load, and those who launch on this machine are
    in a hurry."""
    if options.command == "spot":
        from . import spot

        spot.watch(options.node_dir, os.environ)
        return
    from .relay import Post, relay

    sys.exit(relay(Post.from_environ(os.environ), options.die_with_parent_pid))


def _detach() -> bool:
    """Whether this is the process that goes on. Its starter can wait for the other one, which ends now."""
    return fork() == 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="windlass-agent", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    single = commands.add_parser("supervise", help="run the plan in a node's folder; secrets as JSON on stdin")
    single.add_argument("node_dir")
    task = commands.add_parser("step", help="run this node's plan as a task of a Slurm step, which it does not leave")
    task.add_argument("attempt_dir")
    warm = commands.add_parser("warm", help="fork supervisors on request, from an interpreter with modules loaded")
    warm.add_argument("--fd", type=int, required=True, help="the listening socket, inherited")
    warm.add_argument("--socket", required=True, help="its path; the launcher ends when the file is gone")
    warm.add_argument("--interpreter", default="", help="whose scripts may run in place; none: all are executed")
    warm.add_argument("--preimport", default="", help="modules to load, separated by commas")
    warm.add_argument("--idle-s", type=float, default=1800.0)
    away = commands.add_parser("relay", help="run a node that reaches its server over HTTP; told by the environment")
    away.add_argument("--die-with-parent-pid", type=int, action="append", default=[], help="end when it has ended")
    notices = commands.add_parser("spot", help="watch for the cloud's notice that it takes the machine away")
    notices.add_argument("node_dir")
    return parser
