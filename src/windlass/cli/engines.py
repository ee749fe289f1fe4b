"""`engines`: where runs can go, and whether each can be reached."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.terminal import Cell, next_steps, notice, say, say_json, table
from windlass.core.quantities import format_duration

if TYPE_CHECKING:
    from windlass.wire.cluster import EngineView


def engines(ctx: typer.Context, json: options.Json = False) -> None:
    """List the engines, and whether they can be reached."""
    with open_client(ctx) as client:
        found = client.cluster().engines
    if json:
        say_json([engine.model_dump(mode="json") for engine in found])
        return
    if not found:
        notice("no controller has opened an engine yet; `windlass doctor` says whether one is active")
        return
    rows: list[list[Cell | str]] = [
        [engine.name, engine.type, str(engine.nodes), _state(engine, time.time())] for engine in found
    ]
    say(table(["NAME", "TYPE", "NODES", "STATE"], rows, flexible=3, stream=sys.stdout))
    next_steps("windlass cluster", "windlass doctor")


def _state(engine: EngineView, now: float) -> Cell:
    if engine.unreachable_since is None:
        return Cell("ok", ("green",))
    since = format_duration(max(0.0, now - engine.unreachable_since))
    return Cell(f"unreachable for {since}: {engine.message}", ("red",))
