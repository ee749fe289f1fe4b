"""`artifacts`: the files of a run or a logged model: list, fetch, send, remove."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.terminal import Cell, next_steps, notice, say, say_json, table
from windlass.core.errors import InvalidInput, NotFound
from windlass.core.names import listed
from windlass.core.quantities import format_count, format_duration, format_size

if TYPE_CHECKING:
    from windlass.client.artifacts import Artifacts
    from windlass.wire.artifacts import ArtifactView, ModelView

app = typer.Typer(help="Files of a run: list, fetch, send, remove.", no_args_is_help=True)

Of = Annotated[
    str, typer.Argument(metavar="RUN", help="A run by its id, the beginning of one, or name; or m-…, a model.")
]
InRun = Annotated[str, typer.Argument(metavar="PATH", help="A file or folder of the run.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace files that are there.")]


@app.command()
def ls(
    ctx: typer.Context,
    run: Of,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A folder of the run.")] = "",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="All files below it.")] = False,
    json: options.Json = False,
) -> None:
    """List what a run or a logged model has."""
    found = open_client(ctx).artifacts(run).list(path, recursive=recursive)
    if json:
        say_json(found.model_dump(mode="json"))
        return
    if found.files:
        now, head = time.time(), ("SIZE", "AGE", "PATH", "SHA256")
        say(table(head, [_row(item, now) for item in found.files], flexible=2, stream=sys.stdout))
        next_steps(f"windlass artifacts get {run} {found.files[0].path}")
    elif not found.models:
        notice(f"{found.run_id} has no artifacts" + (f" in '{path}'" if path else ""))
    if found.models:
        notice(_of_models(run, found.models))


def _of_models(run: str, models: Sequence[ModelView]) -> str:
    """Whose files are not among those of the run that were listed."""
    told = listed([f"{model.name} ({model.id})" for model in models])
    return f"logged models: {told}; `windlass artifacts ls {run} {models[0].name}` shows the files of one"


def _row(item: ArtifactView, now: float) -> list[Cell | str]:
    if item.is_dir:
        return ["", "", Cell(f"{item.path}/", ("blue",)), ""]
    age = "" if item.created_at is None else format_duration(max(0.0, now - item.created_at))
    return [format_size(item.size_bytes or 0), age, item.path, Cell((item.digest or "")[:12], ("dim",))]


@app.command()
def get(
    ctx: typer.Context,
    run: Of,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A file or folder; default: everything.")] = "",
    to: Annotated[Path, typer.Option("--to", "-o", help="Where to; `-` is stdout.")] = Path("."),
    force: Force = False,
) -> None:
    """Fetch a file or a folder. One that broke off goes on where it was."""
    artifacts = open_client(ctx).artifacts(run)
    below = artifacts.list(path, recursive=True).files
    if below or not path:
        _get_folder(artifacts, path, below, to, force=force)
        return
    one = _find(artifacts, path)
    if str(to) == "-":
        with artifacts.reading(path) as pieces:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
        return
    target = to / one.path.rpartition("/")[2] if to.is_dir() else to
    _check_free([target], force)
    with _bar("fetching", one.size_bytes or 0) as progress:
        artifacts.get(path, target, progress=progress)
    say(str(target))


def _get_folder(artifacts: Artifacts, path: str, files: list[ArtifactView], to: Path, *, force: bool) -> None:
    if str(to) == "-":
        raise InvalidInput(f"'{path or '/'}' is a folder", hint="name a file for stdout, or a folder to put it in")
    above = path.strip("/")
    _check_free([to / item.path.removeprefix(above).lstrip("/") for item in files], force)
    with _bar("fetching", sum(item.size_bytes or 0 for item in files)) as progress:
        fetched = artifacts.get_folder(path, to, progress=progress)
    say(f"{format_count(len(fetched), 'file')} in {to}")


def _find(artifacts: Artifacts, path: str) -> ArtifactView:
    folder, _, name = path.strip("/").rpartition("/")
    for item in artifacts.list(folder).files:
        if item.path.rpartition("/")[2] == name:
            return item
    raise NotFound(f"there is no artifact '{path}'", hint="`windlass artifacts ls RUN -r` lists what there is")


def _check_free(targets: list[Path], force: bool) -> None:
    if not force and (there := next((target for target in targets if target.exists()), None)):
        raise InvalidInput(f"'{there}' is there already", hint="--force replaces it, --to names another place")


@app.command()
def put(
    ctx: typer.Context,
    run: options.RunRef,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file or folder of this machine.", exists=True)],
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="Its name in the run; default: its own.")] = "",
) -> None:
    """Send a file or a folder; files of the run with the same names are replaced."""
    artifacts = open_client(ctx).artifacts(run)
    if file.is_dir():
        size = sum(item.stat().st_size for item in file.rglob("*") if item.is_file())
        with _bar("sending", size) as progress:
            sent = artifacts.put_folder(file, path or file.resolve().name, progress=progress)
        say(f"{format_count(len(sent), 'file')}, {format_size(size)}")
        return
    with _bar("sending", file.stat().st_size) as progress:
        kept = artifacts.put(file, path or None, progress=progress)
    say(f"{kept.path}  {format_size(kept.size_bytes or 0)}  {kept.digest}")


@app.command()
def rm(ctx: typer.Context, run: options.RunRef, path: InRun) -> None:
    """Remove a file, or a folder and all that is in it."""
    count = open_client(ctx).artifacts(run).remove(path)
    say(f"removed {format_count(count, 'file')}")


@contextlib.contextmanager
def _bar(what: str, size: int) -> Iterator[Callable[[int], None]]:
    """On a terminal only, and on stderr."""
    if not sys.stderr.isatty():
        yield lambda _more: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=size)
        yield lambda more: shown.advance(task, more)
