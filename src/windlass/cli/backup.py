"""`backup` and `restore`: everything a server knows in one file, and back. They work on the database and the blobs
themselves, so they are run where the server's settings are.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli.server import ConfigOption, HomeOption, home_of
from windlass.cli.terminal import next_steps, notice, say
from windlass.core.errors import BadSeal, Conflict
from windlass.core.quantities import format_size

if TYPE_CHECKING:
    from windlass.server.settings import Settings

Place = Annotated[str, typer.Argument(metavar="FILE", help="A file, or s3://BUCKET/KEY, gs://…, az://….")]


def backup(
    ctx: typer.Context,
    place: Place,
    no_blobs: Annotated[bool, typer.Option("--no-blobs", help="Leave out code and other blobs.")] = False,
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="With the key that opens the secrets; keep the file to yourself.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Write all runs, metrics, logs and code into one file. Servers go on working meanwhile."""
    from windlass.blobs.opening import open_blobs
    from windlass.db.database import Database
    from windlass.server.backup.places import writing
    from windlass.server.backup.writing import write_backup

    settings = _settings(ctx, config, home)
    key = _read_key(settings) if with_secrets else None
    blobs = None if no_blobs else open_blobs(settings.blobs, home=settings.home, environ=os.environ)
    with (
        contextlib.closing(Database(settings.database_url)) as db,
        _progress() as progress,
        writing(place, settings.blobs, os.environ, force=force) as file,
    ):
        found = write_backup(file, db, blobs, secret_key=key, now=time.time(), progress=progress)
        size = file.tell()
    rows = sum(found.rows.values())
    say(f"{place}: {found.rows.get('runs', 0)} runs, {rows} rows, {found.blobs} blobs, {format_size(size)}")
    if key is None and found.rows.get("run_secrets"):
        notice("the secrets of runs are in it, sealed; the key that opens them is not (--with-secrets)")
    next_steps(f"windlass restore {place}")


def restore(
    ctx: typer.Context,
    place: Place,
    force: Annotated[bool, typer.Option("--force", help="Delete what the database holds.")] = False,
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Bring a backup back, into a database of either kind. No server may run on that database meanwhile."""
    from windlass.blobs.opening import open_blobs
    from windlass.db.database import Database
    from windlass.server import homefolder
    from windlass.server.backup.places import reading
    from windlass.server.backup.restoring import Backup
    from windlass.server.backup.restoring import restore as bring_back

    settings = _settings(ctx, config, home)
    homefolder.prepare(settings.home)
    with (
        homefolder.owned(settings.home),
        reading(place, settings.blobs, os.environ) as file,
        contextlib.closing(Database(settings.database_url)) as db,
    ):
        found = Backup(file)
        _check_key(settings, found.secret_key())
        blobs = open_blobs(settings.blobs, home=settings.home, environ=os.environ)
        with _progress() as progress:
            rows = bring_back(found, db, blobs, force=force, progress=progress)
        if (key := found.secret_key()) is not None:
            _write_key(settings, key)
        where = db.describe()
    say(f"{where}: {rows.get('runs', 0)} runs, {sum(rows.values())} rows, {found.checksums.blobs} blobs")
    next_steps("windlass up", "windlass ps")


def _settings(ctx: typer.Context, config: Path | None, home: Path | None) -> Settings:
    from windlass.server.settings import Settings

    return Settings.from_environ(os.environ, home=home_of(ctx, home), config=config)


def _key_file(settings: Settings) -> Path:
    return settings.secret_key_file or settings.home / "secret.key"


def _read_key(settings: Settings) -> bytes | None:
    from windlass.runs.sealing import KEY_VARIABLE

    if text := os.environ.get(KEY_VARIABLE):
        return text.encode()
    try:
        return _key_file(settings).read_bytes()
    except FileNotFoundError:
        return None  # no secret was ever sealed
    except OSError as error:
        raise BadSeal(f"the key in {_key_file(settings)} cannot be read: {error.strerror}") from error


def _check_key(settings: Settings, key: bytes | None) -> None:
    """Before anything is changed: what is sealed with another key could not be opened any more."""
    if key is not None and (there := _read_key(settings)) is not None and there.strip() != key.strip():
        raise Conflict(
            f"{_key_file(settings)} holds another key than the backup",
            hint="move it away if nothing is sealed with it; with WINDLASS_SECRET_KEY, set it to the backup's",
        )


def _write_key(settings: Settings, key: bytes) -> None:
    path = _key_file(settings)
    if _read_key(settings) is None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(key)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each kind of thing, on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True)) as bars:

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show
