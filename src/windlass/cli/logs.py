"""`logs`: what a run has written, and writes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.loglines import LogFormatter
from windlass.cli.moments import moment
from windlass.cli.pane import Pane
from windlass.cli.terminal import notice, paint_for, say
from windlass.core.errors import InvalidInput

if TYPE_CHECKING:
    from windlass.client.run import LogWish
    from windlass.wire.runs import LogLine


def logs(
    ctx: typer.Context,
    run: options.RunRef,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it writes more.")] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank's.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt's. Default: all.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last lines.")] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", "-g", metavar="PATTERN", help="Only lines that match a regular expression.")
    ] = None,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Let --grep take a for A.")] = False,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="From then on: 10m (ago), 14:30, 2026-11-15T14:30.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Up to then.")] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="Show when each line was written.")] = False,
    json: options.Json = False,
) -> None:
    """Show a run's output, or the lines of it that match. With -f, follow it to the end."""
    wanted: LogWish = {
        "rank": rank,
        "attempt": attempt,
        "tail": tail,
        "grep": grep,
        "ignore_case": ignore_case,
        "since": moment("--since", since),
        "until": moment("--until", until),
    }
    if wanted["since"] is not None and wanted["until"] is not None and wanted["since"] > wanted["until"]:
        raise InvalidInput(f"--since {since} is after --until {until}", hint="nothing lies between them")
    found = open_client(ctx).get(run)
    if follow:
        lines = found.follow_logs(
            on_gap=lambda lost: notice(
                "windlass: connection lost, reconnecting" if lost else "windlass: connected again"
            ),
            **wanted,
        )
    else:
        lines = found.iter_logs(**wanted)
    try:
        if json:
            for line in lines:
                say(line.model_dump_json())
        else:
            formatter = LogFormatter(
                paint=paint_for(sys.stdout),
                ranks=found.world_size > 1 and rank is None,
                timestamps=timestamps,
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
