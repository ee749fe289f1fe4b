"""The command's entry: options that hold for all commands, the list of commands, and errors in words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from windlass import __version__
from windlass.cli import (
    backup,
    cluster,
    config,
    control,
    doctor,
    engines,
    listing,
    logs,
    plan,
    recipes,
    server,
    show,
    submit,
    watch,
)
from windlass.cli.connection import Connection
from windlass.core.errors import Ambiguous, InvalidInput, NotFound, ServerUnreachable, WindlassError
from windlass.core.home import default_home

# httpx loads a command line of its own if it can, and that costs a tenth of our start.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

app = typer.Typer(
    name="windlass",
    help="Haul training runs over whatever machines there are.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"windlass {__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    ctx: typer.Context,
    url: Annotated[
        str | None, typer.Option(envvar="WINDLASS_URL", help="The server. Default: the embedded one.")
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(envvar="WINDLASS_HOME", help="Folder of the embedded server. Default: ~/.windlass."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version  # dealt with by its callback
    ctx.obj = Connection(url=url or None, home=home.expanduser().absolute() if home else default_home())


_RUNS, _SERVER = "Runs", "Server"
# Everything after the command's first word is the command's own: `windlass run train.py --lr 3`.
_OPEN_ENDED = {"allow_interspersed_args": False}
app.command(rich_help_panel=_RUNS, context_settings=_OPEN_ENDED)(submit.run)
app.command(rich_help_panel=_RUNS)(submit.submit)
app.command(rich_help_panel=_RUNS)(listing.ps)
app.command(rich_help_panel=_RUNS)(show.show)
app.command(rich_help_panel=_RUNS)(logs.logs)
app.command(rich_help_panel=_RUNS)(watch.watch)
app.command(rich_help_panel=_RUNS)(control.why)
app.command(rich_help_panel=_RUNS)(control.cancel)
app.command(rich_help_panel=_RUNS)(control.resume)
app.command(rich_help_panel=_RUNS)(control.clone)
app.command(rich_help_panel=_RUNS)(recipes.recipes)
app.command(rich_help_panel=_RUNS)(plan.plan)
app.command(rich_help_panel=_SERVER)(server.up)
app.command(rich_help_panel=_SERVER)(server.down)
app.command(rich_help_panel=_SERVER)(cluster.cluster)
app.command(rich_help_panel=_SERVER)(engines.engines)
app.command(rich_help_panel=_SERVER)(doctor.doctor)
app.add_typer(config.app, name="server", rich_help_panel=_SERVER)
app.command(rich_help_panel=_SERVER)(backup.backup)
app.command(rich_help_panel=_SERVER)(backup.restore)
app.command(rich_help_panel=_SERVER)(server.version)


def exit_code_of(error: WindlassError) -> int:
    if isinstance(error, ServerUnreachable):
        return 4
    return 2 if isinstance(error, InvalidInput | NotFound | Ambiguous) else 1


def main() -> None:
    try:
        app()
    except WindlassError as error:
        from windlass.cli.terminal import paint_for
        from windlass.core.errors import InvalidDocument

        paint = paint_for(sys.stderr)
        problems = error.problems if isinstance(error, InvalidDocument) else (error.message,)
        for problem in problems:
            print(f"{paint('error:', 'red', 'bold')} {problem}", file=sys.stderr)
        if error.hint:
            print(f"{paint('hint:', 'cyan')} {error.hint}", file=sys.stderr)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(130)
