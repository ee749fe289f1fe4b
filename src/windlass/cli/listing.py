"""`ps`: the runs there are."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.charts import bar
from windlass.cli.connection import open_client
from windlass.cli.moments import age
from windlass.cli.status import eta_words, share_done
from windlass.cli.terminal import STATE_STYLES, Cell, next_steps, notice, say, say_json, table
from windlass.core.quantities import format_duration

if TYPE_CHECKING:
    from windlass.client import Client
    from windlass.wire.runs import RunSummary

_LIVE = ("queued", "starting", "running", "recovering")
_RECENT = 10


def ps(
    ctx: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Those that are over too.")] = False,
    state: Annotated[list[str] | None, typer.Option("--state", "-s", help="Only in this state; repeatable.")] = None,
    project: options.Project = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="How many at most.")] = None,
    json: options.Json = False,
) -> None:
    """List runs: those that are not over, or all of them with -a."""
    client = open_client(ctx)
    states = state or (None if everything else list(_LIVE))
    runs = list(client.list(state=states, project=project, limit=limit or (50 if everything else None)))
    if json:
        say_json([run.model_dump(mode="json") for run in runs])
        return
    if not runs and states == list(_LIVE):
        runs = list(client.list(project=project, limit=_RECENT))
        if runs:
            notice("nothing is running; the last runs:")
    if not runs:
        notice(_nothing(client, project, state))
        return
    headers = ("ID", "NAME", "STATE", "PROGRESS", "DURATION", "TRIES", "AGE")
    say(table(headers, [_row(run, time.time()) for run in runs], flexible=1, stream=sys.stdout))
    newest = runs[0].id
    next_steps(f"windlass show {newest}", f"windlass logs {newest}", "windlass ps -a")


def _nothing(client: Client, project: str | None, states: list[str] | None) -> str:
    if project is not None:
        page = next(client.search_pages(project=project, limit=1))  # it knows which projects there are
        return page.remarks[0] if page.remarks else f"no run of project '{project}' is like that"
    return "no run is like that" if states else "there are no runs yet; try `windlass run train.py`"


def _row(run: RunSummary, now: float) -> list[Cell | str]:
    return [
        Cell(run.id, ("bold",)),
        run.name,
        Cell(run.word, STATE_STYLES.get(run.word, STATE_STYLES.get(run.state, ()))),
        _progress(run),
        format_duration(run.duration_s) if run.duration_s is not None else "",
        str(run.attempts) if run.attempts else "",
        age(now - run.submitted_at),
    ]


def _progress(run: RunSummary) -> str:
    done = share_done(run)
    if done is None:
        return f"step {run.progress.step:,}" if run.progress else ""
    if run.ended_at is not None:
        return f"{done:.0%}"
    return "  ".join(filter(None, [f"{bar(done, 8)} {done:4.0%}", eta_words(run)]))
