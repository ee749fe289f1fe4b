"""The agent's commands. Those of one machine leave their starter at once: what they do must not depend on its life.

Each loads what it needs and no more, `relay` and `step` not even the parser: users wait for the first line of their
script.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Sequence

if TYPE_CHECKING:
    import argparse

    from .ranks import Step

_PARENT = "--die-with-parent-pid"


def start(arguments: Sequence[str]) -> Step | None:
    """The first step, in a process of its own; None in the one that was started."""
    if arguments and arguments[0] == "relay":
        _relay(arguments[1:])
        return None
    if len(arguments) == 2 and arguments[0] == "step" and not arguments[1].startswith("-"):
        from . import step

        return step.start(arguments[1])
    options = _parser().parse_args(arguments)
    begin: Callable[[Any], Step | None] = options.begin
    return begin(options)


def _relay(arguments: Sequence[str]) -> None:
    words = [text for word in arguments for text in word.split("=", 1)]
    if set(words[::2]) - {_PARENT} or len(words) % 2 or not all(text.isdigit() for text in words[1::2]):
        raise SystemExit("windlass-agent relay: %r is not understood; known: %s PID" % (list(arguments), _PARENT))
    from .relay import Post, relay

    sys.exit(relay(Post.from_environ(os.environ), [int(text) for text in words[1::2]]))


def _spot(options: argparse.Namespace) -> None:
    from . import spot

    spot.watch(options.node_dir, os.environ)


def _supervise(options: argparse.Namespace) -> Step | None:
    from .supervisor import supervise

    line = sys.stdin.readline()
    secrets = json.loads(line) if line.strip() else {}
    return functools.partial(supervise, options.node_dir, secrets, None) if _detach() else None


def _step(options: argparse.Namespace) -> Step | None:
    from . import step

    return step.start(options.attempt_dir)


def _warm(options: argparse.Namespace) -> Step | None:
    from .warm import Launcher

    if not _detach():
        return None
    os.setsid()
    launcher = Launcher(
        fd=options.fd,
        path=options.socket,
        interpreter=options.interpreter,
        preimport=[name for name in options.preimport.split(",") if name],
        later=[name for name in options.later.split(",") if name],
        idle_s=options.idle_s,
    )
    return launcher.serve


def _detach() -> bool:
    """Whether this is the process that goes on. Its starter can wait for the other one, which ends now."""
    from .ranks import fork

    return fork() == 0


def _parser() -> argparse.ArgumentParser:
    import argparse

    parser = argparse.ArgumentParser(prog="windlass-agent", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    single = commands.add_parser("supervise", help="run the plan in a node's folder; secrets as JSON on stdin")
    single.add_argument("node_dir")
    single.set_defaults(begin=_supervise)
    task = commands.add_parser("step", help="run this node's plan as a task of a Slurm step, which it does not leave")
    task.add_argument("attempt_dir")
    task.set_defaults(begin=_step)
    warm = commands.add_parser("warm", help="fork supervisors on request, from an interpreter with modules loaded")
    warm.add_argument("--fd", type=int, required=True, help="the listening socket, inherited")
    warm.add_argument("--socket", required=True, help="its path; the launcher ends when the file is gone")
    warm.add_argument("--interpreter", default="", help="whose scripts may run in place; none: all are executed")
    warm.add_argument("--preimport", default="", help="modules to load, separated by commas")
    warm.add_argument("--later", default="", help="more of them, once nobody has come for a while")
    warm.add_argument("--idle-s", type=float, default=1800.0)
    warm.set_defaults(begin=_warm)
    away = commands.add_parser("relay", help="run a node that reaches its server over HTTP; told by the environment")
    away.add_argument(_PARENT, type=int, action="append", default=[], help="end when it has ended")
    notices = commands.add_parser("spot", help="watch for the cloud's notice that it takes the machine away")
    notices.add_argument("node_dir")
    notices.set_defaults(begin=_spot)
    return parser
