"""`import`: what other tools have kept, copied to the server."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import connection, open_or_start
from windlass.cli.terminal import next_steps, notice, paint_for, say, say_json
from windlass.core.errors import InvalidInput
from windlass.core.quantities import format_count, format_size

if TYPE_CHECKING:
    from windlass.imports.copying import Summary, Watcher, Wishes
    from windlass.imports.records import Source

app = typer.Typer(help="Copy what other tools have kept: MLflow, TensorBoard.", no_args_is_help=True)

_MOST_PROBLEMS = 20


@app.callback()
def _group() -> None:
    """Copy what other tools have kept: MLflow, TensorBoard."""


@app.command()
def mlflow(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="http://HOST:PORT of an MLflow server, or a folder `mlruns`.")
    ],
    experiment: Annotated[
        list[str] | None,
        typer.Option("--experiment", "-e", metavar="NAME", help="Only this experiment; repeatable."),
    ] = None,
    artifacts: Annotated[bool, typer.Option("--artifacts/--no-artifacts", help="Files of runs and models too.")] = True,
    deleted: Annotated[bool, typer.Option("--deleted", help="Deleted experiments and runs too, as deleted.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be copied.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Compare points and inputs of all runs, not only of those of the last day.")
    ] = False,
    parallel: Annotated[int, typer.Option("--parallel", min=1, max=64, help="Runs at a time.")] = 8,
    json: options.Json = False,
) -> None:
    """Copy experiments, runs, metrics, artifacts and models from MLflow, with their ids. Again: what is new.

    MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, are sent to the MLflow server.
    """
    from windlass.imports.copying import Wishes
    from windlass.imports.opening import open_source

    wishes = Wishes(
        experiments=tuple(experiment or ()),
        deleted=deleted,
        files=artifacts,
        dry_run=dry_run,
        full=full,
        at_once=parallel,
    )
    _copy(ctx, open_source(source, os.environ), wishes, json=json)


@app.command()
def tensorboard(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `tensorboard --logdir` has.")],
    experiment: Annotated[
        str | None, typer.Option("--experiment", "-e", metavar="NAME", help="For its runs; default: the folder's name.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be copied.")] = False,
    json: options.Json = False,
) -> None:
    """Make a run of every folder with event files of TensorBoard, of their scalars. Again: what is new."""
    from windlass.imports.boards import BoardSource
    from windlass.imports.copying import Wishes

    _copy(ctx, BoardSource(folder, experiment), Wishes(dry_run=dry_run), json=json)


def _copy(ctx: typer.Context, source: Source, wishes: Wishes, *, json: bool) -> None:
    from windlass.imports.copying import Copier
    from windlass.imports.destination import Destination

    with contextlib.closing(source), open_or_start(connection(ctx)) as client, _watching() as watcher:
        try:
            summary = Copier(source, Destination(client.transport), wishes, watcher).copy()
        except OSError as error:  # of a folder that is not ours to read, or goes away
            raise InvalidInput(f"'{error.filename}' cannot be read: {error.strerror}") from error
    if json:
        say_json({"source": source.address, "dry_run": wishes.dry_run, **asdict(summary)})
    else:
        _show(summary, dry_run=wishes.dry_run)
    if summary.problems:
        raise typer.Exit(1)


def _show(summary: Summary, *, dry_run: bool) -> None:
    runs = summary.runs
    told = "would be " if dry_run else ""
    parts = [f"{runs[name]:,} {told if name in ('copied', 'updated') else ''}{name}" for name in runs if runs[name]]
    say(f"{format_count(summary.experiments, 'experiment')} ({summary.experiments_created:,} new)")
    say(f"runs: {', '.join(parts) or 'none'}")
    if not dry_run:
        files = f"{format_count(summary.files, 'file')} ({format_size(summary.bytes)})"
        say(f"{format_count(summary.points, 'point')}, {files}")
    say(
        f"{format_count(summary.logged_models, 'logged model')}, {format_count(summary.models, 'registered model')},"
        f" {format_count(summary.versions, 'version' if dry_run else 'new version')}"
    )
    paint = paint_for(sys.stderr)
    for problem in summary.problems[:_MOST_PROBLEMS]:
        print(f"{paint('not copied:', 'yellow', 'bold')} {problem}", file=sys.stderr)
    if len(summary.problems) > _MOST_PROBLEMS:
        notice(f"and {len(summary.problems) - _MOST_PROBLEMS:,} more; --json lists all")
    if not dry_run:
        next_steps("windlass search")


@contextlib.contextmanager
def _watching() -> Iterator[Watcher]:
    """On stderr: a bar on a terminal, elsewhere a line now and then."""
    if not sys.stderr.isatty():
        from windlass.cli.importlines import Lines

        yield Lines(notice)
        return
    from windlass.cli.importbar import shown_progress

    with shown_progress() as watcher:
        yield watcher
