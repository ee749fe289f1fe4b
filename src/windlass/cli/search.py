"""`search`: runs by what is known of them, as a table, CSV or Parquet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windlass.cli import options
from windlass.cli.charts import number
from windlass.cli.connection import open_client
from windlass.cli.terminal import STATE_STYLES, Cell, notice, say, say_json, table
from windlass.core.errors import InvalidInput

if TYPE_CHECKING:
    from windlass.wire.search import FoundRun

_MOST_COLUMNS = 6  # besides id, name and state, if none were asked for


def search(
    ctx: typer.Context,
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[WHERE]", help="Such as: metrics.loss < 0.5 and params.lr = '0.1' and state = 'succeeded'."
        ),
    ] = None,
    order: Annotated[
        list[str] | None,
        typer.Option("--order", "-o", metavar="BY", help="Such as metrics.loss, 'cost desc'; repeatable."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", "-c", metavar="A,B", help="Such as params.lr,metrics.loss,cost_usd.")
    ] = None,
    view: Annotated[
        str | None, typer.Option("--view", metavar="NAME", help="A saved search; `windlass views`.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="NAME", help="Runs of this group.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="Runs of this project; a view may be its own.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 50,
    csv: Annotated[bool, typer.Option("--csv", help="CSV on stdout; without --columns or a view's, of all.")] = False,
    parquet: Annotated[Path | None, typer.Option("--parquet", metavar="FILE", help="Write a Parquet file.")] = None,
    json: options.Json = False,
) -> None:
    """Find runs by params, metrics, tags, state, time or cost; those of MLflow's clients too."""
    client = open_client(ctx)
    wanted = [name.strip() for name in columns.split(",")] if columns else []
    if view is not None:
        wanted = wanted or list(client.views.get(view, project=project).columns)
    found = list(client.search(where, order=order or (), limit=limit, group=group, view=view, project=project))
    if json:
        say_json([run.model_dump(mode="json") for run in found])
        return
    from windlass.client import tables

    if found:
        wanted = _known(found, wanted, lenient=not columns)
    if (parquet is not None or csv) and wanted and not columns and "id" not in wanted:
        wanted = ["id", *wanted]  # as the table has it
    if parquet is not None:
        tables.write_parquet(found, str(parquet), wanted)
        notice(f"{len(found):,} runs in {parquet}")
    elif csv:
        tables.write_csv(found, sys.stdout, wanted)
    elif found:
        _show(found, wanted)
    else:
        notice(
            "no run is like that"
            if where or view or group or project
            else "there are no runs yet; try `windlass run train.py`"
        )


def _known(found: list[FoundRun], wanted: list[str], *, lenient: bool) -> list[str]:
    """`lenient`: columns of a view, which none of these runs need have."""
    from windlass.client.tables import rows_of

    known, _ = rows_of(found)
    wrong = [name for name in wanted if name not in known]
    if wrong and not lenient:
        raise InvalidInput(f"no run has a column {wrong[0]!r}", hint=f"there are {', '.join(known)}")
    return [name for name in wanted if name in known]


def _show(found: list[FoundRun], wanted: list[str]) -> None:
    from windlass.client.tables import rows_of

    known, rows = rows_of(found)
    more = wanted or [name for name in known if name.startswith(("metrics.", "params."))][:_MOST_COLUMNS]
    cells: list[list[Cell | str]] = [
        [
            Cell(row["id"], ("bold",)),
            row["name"],
            Cell(row["state"], STATE_STYLES.get(row["state"], ())),
            *(_text(row.get(name)) for name in more),
        ]
        for row in rows
    ]
    headers = ["ID", "NAME", "STATE", *(name.partition(".")[2] or name for name in more)]
    say(table(headers, cells, flexible=1, stream=sys.stdout))


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return number(value) if isinstance(value, float) else str(value)
