"""`show`: the full record of a run; and the short one at the end of a followed run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.status import progress_words
from windlass.cli.terminal import next_line, next_steps, paint_for, say, say_json, width_of
from windlass.core.errors import NotFound

if TYPE_CHECKING:
    from windlass.client import Client, Run
    from windlass.wire.runs import RunView


def show(ctx: typer.Context, run: options.RunRef, json: options.Json = False) -> None:
    """Show everything that is known of a run."""
    client = open_client(ctx)
    try:
        found = client.get(run)
    except NotFound as error:
        _show_tracked(client, run, error, json=json)
        return
    if json:
        record = found.view.model_dump(mode="json")
        say_json(record | {"attempt_list": [attempt.model_dump(mode="json") for attempt in found.attempts()]})
        return
    from windlass.cli import record as records

    paint = paint_for(sys.stdout)
    lines = records.Record(paint, width_of(sys.stdout))
    attempts = found.attempts()
    lines.put_all("note", (found.view.note or "").splitlines())
    records.put_outcome(lines, found.view, attempts)
    events = found.events()
    records.put_recoveries(lines, events)
    records.put_alerts(lines, events)
    lines.put("progress", progress_words(found.view))
    records.put_checkpoint(lines, found.checkpoints())
    records.put_metrics(lines, found.view, client)
    records.put_request(lines, found.view)
    records.put_provenance(lines, found.view)
    records.put_cost(lines, found.view)
    records.put_folders(lines, found.view, attempts)
    say(records.headline(found.view, paint))
    say("\n".join(lines.lines))
    next_steps(*_follow_ups(found.view)[1 if found.state == "succeeded" else 0 :])


def _show_tracked(client: Client, ref: str, error: NotFound, *, json: bool) -> None:
    """A run that an MLflow client made. Raises `error` if it is none of those either."""
    from windlass.cli import record as records

    try:
        found = client.find(ref)
    except NotFound:
        raise error from None
    if json:
        say_json(found.model_dump(mode="json"))
        return
    paint = paint_for(sys.stdout)
    lines = records.Record(paint, width_of(sys.stdout))
    lines.put_all("note", (found.note or "").splitlines())
    records.put_metrics(lines, found, client)
    records.put_tracked(lines, found)
    say(records.headline(found, paint))
    say("\n".join(lines.lines))
    next_steps(f"windlass artifacts ls {found.id} -r", f"windlass lineage {found.id}")


def show_end(run: Run) -> None:
    """After following: the outcome. In a pipe it goes to stderr, since stdout is the run's."""
    from windlass.cli import record as records

    stream = sys.stdout if sys.stdout.isatty() else sys.stderr
    paint = paint_for(stream)
    lines = records.Record(paint, width_of(stream))
    attempts = run.attempts()
    records.put_outcome(lines, run.view, attempts)
    events = run.events()
    records.put_recoveries(lines, events)
    records.put_alerts(lines, events)
    records.put_metrics(lines, run.view, run.client)
    records.put_cost(lines, run.view)
    records.put_folders(lines, run.view, attempts)
    shown = [records.headline(run.view, paint), *lines.lines, next_line(_follow_ups(run.view), stream)]
    print("\n" + "\n".join(shown), file=stream, flush=True)


def _follow_ups(view: RunView) -> list[str]:
    if view.ended_at is None:
        return [f"windlass logs -f {view.id}", f"windlass watch {view.id}", f"windlass cancel {view.id}"]
    again = f"windlass clone {view.id} --set key=value"
    if view.state == "succeeded":
        return [f"windlass show {view.id}", f"windlass logs {view.id}", again]
    return [f"windlass logs {view.id}", f"windlass resume {view.id}", again]
