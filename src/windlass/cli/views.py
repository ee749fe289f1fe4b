"""`views`: searches that have a name."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.terminal import Cell, next_steps, notice, say, say_json, table

app = typer.Typer(help="Saved searches: list, save, remove.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the view.")]
OfProject = Annotated[str | None, typer.Option("--project", help="The project whose runs it shows; default all.")]


@app.command()
def ls(ctx: typer.Context, project: OfProject = None, json: options.Json = False) -> None:
    """List saved views."""
    found = open_client(ctx).views.list(project=project)
    if json:
        say_json([view.model_dump(mode="json") for view in found])
        return
    if not found:
        notice("there are no views yet")
        next_steps(
            "windlass views save best \"state = 'succeeded'\" --order metrics.loss --columns params.lr,metrics.loss"
        )
        return
    rows: list[list[Cell | str]] = [
        [
            Cell(view.name, ("bold",)),
            view.project or "-",
            view.where or "-",
            ", ".join(view.order) or "-",
            ",".join(view.columns) or "-",
        ]
        for view in found
    ]
    say(table(["NAME", "PROJECT", "WHERE", "ORDER", "COLUMNS"], rows, flexible=2, stream=sys.stdout))


@app.command()
def save(
    ctx: typer.Context,
    name: Name,
    where: Annotated[str | None, typer.Argument(metavar="[WHERE]", help="As of `windlass search`.")] = None,
    order: Annotated[
        list[str] | None, typer.Option("--order", "-o", metavar="BY", help="Such as metrics.loss; repeatable.")
    ] = None,
    columns: Annotated[str | None, typer.Option("--columns", "-c", metavar="A,B", help="What to show.")] = None,
    project: OfProject = None,
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None,
    json: options.Json = False,
) -> None:
    """Give a search a name, in place of one that has it."""
    shown = [column.strip() for column in (columns or "").split(",") if column.strip()]
    view = open_client(ctx).views.save(
        name, where, order=order or (), columns=shown, project=project, description=description
    )
    if json:
        say_json(view.model_dump(mode="json"))
        return
    notice(f"saved as '{view.name}'" + (f" of project {project}" if project else ""))
    next_steps(f"windlass search --view {view.name}")


@app.command()
def rm(ctx: typer.Context, name: Name, project: OfProject = None) -> None:
    """Remove a view. Runs stay."""
    open_client(ctx).views.remove(name, project=project)
    notice(f"view '{name}' is gone")
