"""The list of commands, and the options that hold for all of them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from windlass import __version__
from windlass.cli.connection import Connection
from windlass.core.home import default_home


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"windlass {__version__}")
        raise typer.Exit


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


# Each command's module, in the order of the help. Those of the server come after those of runs.
_RUNS = {
    "run": "submit",
    "submit": "submit",
    "ps": "listing",
    "show": "show",
    "logs": "logs",
    "metrics": "metrics",
    "watch": "watch",
    "search": "search",
    "compare": "compare",
    "views": "views",
    "note": "notes",
    "group": "notes",
    "lineage": "lineage",
    "queue": "queue",
    "why": "control",
    "cancel": "control",
    "resume": "control",
    "clone": "control",
    "reproduce": "control",
    "checkpoints": "checkpoints",
    "artifacts": "artifacts",
    "import": "imports",
    "recipes": "recipes",
    "plan": "plan",
    "simulate": "simulate",
}
_SERVER = {
    "up": "server",
    "down": "server",
    "cluster": "cluster",
    "nodes": "nodes",
    "engines": "engines",
    "webhooks": "webhooks",
    "doctor": "doctor",
    "server": "config",
    "backup": "backup",
    "restore": "backup",
    "version": "server",
}
# Commands with commands of their own.
_GROUPS = (
    "server",
    "checkpoints",
    "nodes",
    "artifacts",
    "import",
    "webhooks",
    "views",
)
# Everything after the command's first word is the command's own: `windlass run train.py --lr 3`.
_OPEN_ENDED = {"run": {"allow_interspersed_args": False}}


def build_app(only: str | None = None) -> typer.Typer:
    """All of the command line, or as much of it as `windlass ONLY ...` needs, if there is such a command."""
    one = only if only in _RUNS or only in _SERVER else None
    app = typer.Typer(
        name="windlass",
        help="Haul training runs over whatever machines there are.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(everywhere)
    for panel, commands in (("Runs", _RUNS), ("Server", _SERVER)):
        for name, module in commands.items():
            if one not in (None, name):
                continue
            found = importlib.import_module(f"windlass.cli.{module}")
            if name in _GROUPS:
                app.add_typer(found.app, name=name, rich_help_panel=panel)
            else:
                settings = _OPEN_ENDED.get(name, {})
                app.command(name, rich_help_panel=panel, context_settings=settings)(getattr(found, name))
    return app
