"""`logs`: what a run has written, and writes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.loglines import LogFormatter
from windlass.cli.pane import Pane
from windlass.cli.terminal import notice, paint_for, say

if TYPE_CHECKING:
    from windlass.wire.runs import LogLine


def logs(
    ctx: typer.Context,
    run: options.RunRef,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it writes more.")] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank's.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt's. Default: all.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last lines.")] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="Show when each line was written.")] = False,
    json: options.Json = False,
) -> None:
    """Show a run's output. With -f, follow it to the end."""
    found = open_client(ctx).get(run)
    if follow:
        lines = found.follow_logs(
            rank=rank,
            attempt=attempt,
            tail=tail,
            on_gap=lambda lost: notice(
                "windlass: connection lost, reconnecting" if lost else "windlass: connected again"
            ),
        )
    else:
        lines = found.iter_logs(rank=rank, attempt=attempt, tail=tail)
    try:
        if json:
            for line in lines:
                say(line.model_dump_json())
        else:
            formatter = LogFormatter(
                paint=paint_for(sys.stdout),
                ranks=found.world_size > 1 and rank is None,
                timestamps=timestamps,
                terminal=sys.stdout.isatty(),
            )
            _print(lines, formatter)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _print(lines: Iterable[LogLine], formatter: LogFormatter) -> None:
    pane = Pane(live=sys.stdout.isatty())
    try:
        for line in lines:
            shown = formatter.feed(line)
            finished = [(shown.stream, shown.text)] if shown is not None else []
            pane.show(finished, [formatter.unfinished] if formatter.unfinished else [])
    finally:
        pane.show([(shown.stream, shown.text) for shown in formatter.drain()], [])
