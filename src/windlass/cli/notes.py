"""`note` and `group`: what people write on runs, and which belong together."""

from __future__ import annotations

import sys
import time
from shlex import quote
from typing import Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.terminal import Cell, next_steps, notice, say, say_json, table
from windlass.core.errors import InvalidInput
from windlass.core.quantities import format_count, format_duration


def note(
    ctx: typer.Context,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run: its id, or its name.")] = None,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="Markdown; - reads stdin. Without it the note is shown.")
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Of a project, in place of a run.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove the note.")] = False,
    json: options.Json = False,
) -> None:
    """Show the note of a run or project, or replace it. MLflow shows it as the description."""
    if project is not None and text is None:
        run, text = None, run
    if (run is None) == (project is None) or (clear and text is not None):
        raise InvalidInput("a note is one run's, or one project's", hint="windlass note RUN TEXT; --project NAME TEXT")
    notes = open_client(ctx).notes
    if text is not None or clear:
        wanted = "" if text is None else sys.stdin.read().rstrip() if text == "-" else text
        if project is None:
            assert run is not None
            notes.set(run, wanted)
        else:
            notes.set_project(project, wanted)
    found = notes.get(run) if run is not None else notes.get_project(project or "")
    if json:
        say_json({"of": run or project, "text": found})
    elif found:
        say(found)
    else:
        notice("there is no note" if text is None and not clear else "the note is gone")


def group(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The group; without it all are listed.")] = None,
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN...]", help="Runs to put into it.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take these runs out of it.")] = False,
    project: Annotated[str | None, typer.Option("--project", help="Of the list: groups with runs of it.")] = None,
    json: options.Json = False,
) -> None:
    """List groups of runs, or put runs into one. `windlass run --group NAME` does so from the start."""
    client = open_client(ctx)
    if name is not None:
        if not runs:
            found = list(client.search(group=name, limit=1_000))
            if json:
                say_json([one.model_dump(mode="json") for one in found])
                return
            for one in found:
                say(f"{one.id}  {one.state}  {one.name}")
            if not found:
                notice(f"no run is in group '{name}'")
            return
        others = client.notes.take_out_of_group(name, runs) if remove else []
        if others:
            notice(f"not in '{name}', and left as they are: {', '.join(others)}")
        if not remove:
            client.notes.put_in_group(name, runs)
        count = len(runs) - len(others)
        notice(f"{format_count(count, 'run')} {'taken out of' if remove else 'put into'} '{name}'")
        next_steps(f"windlass search --group {quote(name)}", f"windlass compare --group {quote(name)}")
        return
    groups = client.notes.groups(project=project)
    if json:
        say_json([one.model_dump(mode="json") for one in groups])
    elif not groups:
        notice("there are no groups yet; `windlass run --group NAME` makes one")
    else:
        now = time.time()
        rows: list[list[Cell | str]] = [
            [
                Cell(one.name, ("bold",)),
                str(one.runs),
                "-" if one.newest_at is None else format_duration(now - one.newest_at),
            ]
            for one in groups
        ]
        say(table(["GROUP", "RUNS", "NEWEST"], rows, flexible=0, stream=sys.stdout))
