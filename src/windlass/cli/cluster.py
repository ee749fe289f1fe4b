"""`cluster`: the nodes and what uses them, as a picture."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.terminal import next_steps, notice, paint_for, say, say_json, width_of

_IN_A_PIPE = 80


def cluster(
    ctx: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="A line per node, however many there are.")] = False,
    json: options.Json = False,
) -> None:
    """Show the nodes as a picture: which run has which GPUs, and what is free."""
    view = open_client(ctx).cluster()
    if json:
        say_json(view.model_dump(mode="json"))
        return
    if not view.nodes and all(engine.unreachable_since is None for engine in view.engines):
        notice("no nodes have been seen yet; `windlass doctor` says whether the controller is active")
        return
    from windlass.cli.picture import render_cluster

    width = width_of(sys.stdout) if sys.stdout.isatty() else _IN_A_PIPE
    paint = paint_for(sys.stdout)
    for line in render_cluster(view, width=width, paint=paint, now=time.time(), everything=everything):
        say(line)
    say(f"\n{view.running} running, {view.queued} queued")
    next_steps("windlass queue", "windlass why RUN")
