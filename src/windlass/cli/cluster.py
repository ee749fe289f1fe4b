"""`cluster`: the nodes and what uses them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer

from windlass.cli import options
from windlass.cli.charts import bar
from windlass.cli.connection import open_client
from windlass.cli.nodes import describe
from windlass.cli.terminal import next_steps, notice, paint_for, say, say_json
from windlass.core.quantities import format_duration, format_size

if TYPE_CHECKING:
    from windlass.wire.cluster import AsideView, EngineView, NodeView

_BAR = 16


def cluster(ctx: typer.Context, json: options.Json = False) -> None:
    """Show the nodes, and how much of each is in use."""
    view = open_client(ctx).cluster()
    if json:
        say_json(view.model_dump(mode="json"))
        return
    if not view.nodes:
        notice("no nodes have been seen yet; `windlass doctor` says whether the controller is active")
        return
    for engine in view.engines:
        _show_engine(engine)
    asides = {(aside.engine, aside.node): aside for aside in view.set_aside}
    for node in view.nodes:
        _show(node, asides.get((node.engine, node.name)))
    say(f"{view.running} running, {view.queued} queued")
    next_steps("windlass ps", "windlass why RUN")


def _show_engine(engine: EngineView) -> None:
    """Only what is worth a line: one engine that answers goes without saying."""
    if engine.unreachable_since is not None:
        paint = paint_for(sys.stdout)
        away = f"cannot be reached since {format_duration(time.time() - engine.unreachable_since)}: {engine.message}"
        say(f"{paint(engine.name, 'bold')}  {paint(away, 'red')}")


def _show(node: NodeView, aside: AsideView | None) -> None:
    paint = paint_for(sys.stdout)
    say(f"{paint(node.name, 'bold')}  {paint(node.engine, 'dim')}")
    if aside is not None:
        say(f"  {paint(describe(aside, time.time()), 'yellow')}")
    rows = [("cpu", node.cpus_used, node.cpus, f"{node.cpus_used:g} of {node.cpus:g}")]
    if node.gpus:
        kind = f" {node.gpu_type}" if node.gpu_type else ""
        rows.append(("gpu", node.gpus_used, node.gpus, f"{node.gpus_used} of {node.gpus}{kind}"))
    memory = f"{format_size(node.memory_used_bytes)} of {format_size(node.memory_bytes)}"
    rows.append(("memory", node.memory_used_bytes, node.memory_bytes, memory))
    for label, used, total, words in rows:
        fraction = used / total if total else 0.0
        style = "red" if fraction > 0.95 else "yellow" if fraction > 0.7 else "green"
        say(f"  {paint(label.ljust(7), 'dim')} {paint(bar(fraction, _BAR), style)}  {words}")
    for run in node.runs:
        share = f"{run.cpus:g} CPU" + (f", GPU {','.join(map(str, run.gpus))}" if run.gpus else "")
        say(f"  {paint('run', 'dim')}     {run.id}  {run.name}  {paint(share, 'dim')}")
