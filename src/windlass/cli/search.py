"""`search`: runs by what is known of them, as a table, CSV or Parquet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.terminal import notice, say_json
from windlass.core.errors import InvalidInput
from windlass.core.quantities import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from windlass.wire.search import FoundPage, FoundRun

_MOST_SHOWN = 50  # in a table, if nothing else was asked for


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
        str | None, typer.Option("--columns", "-c", metavar="A,B", help="Such as params.lr,metrics.loss,cost.")
    ] = None,
    view: Annotated[
        str | None, typer.Option("--view", metavar="NAME", help="A saved search; `windlass views`.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="NAME", help="Runs of this group.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="Runs of this project; a view may be its own.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, help=f"How many at most; default {_MOST_SHOWN} in a table, else all."),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="CSV on stdout; without --columns or a view's, of all.")] = False,
    parquet: Annotated[Path | None, typer.Option("--parquet", metavar="FILE", help="Write a Parquet file.")] = None,
    json: options.Json = False,
) -> None:
    """Find runs by params, metrics, tags, state, time or cost; those of MLflow's clients too."""
    client = open_client(ctx)
    wanted = _checked([name.strip() for name in columns.split(",") if name.strip()] if columns else [])
    if view is not None and not wanted:
        wanted = [name for name in client.views.get(view, project=project).columns if _is_column(name)]
    is_table = not (csv or json or parquet)
    # One more than is shown tells whether there are more.
    most = (limit or _MOST_SHOWN) + 1 if is_table else limit
    pages = client.search_pages(where, order=order or (), limit=most, group=group, view=view, project=project)
    found, named = _collect(pages)
    if json:
        say_json([run.model_dump(mode="json") for run in found])
        return
    from windlass.client import tables

    if found:
        wanted = _known(found, wanted, lenient=not columns)
    if not is_table and wanted and not columns and "id" not in wanted:
        wanted = ["id", *wanted]  # as the table has it
    if parquet is not None:
        tables.write_parquet(found, str(parquet), wanted)
        notice(f"{format_count(len(found), 'run')} in {parquet}")
    elif csv:
        tables.write_csv(found, sys.stdout, wanted)
    elif found:
        _show(found, wanted, named, limit or _MOST_SHOWN)
    else:
        is_narrow = bool(where or view or group or project)
        notice("no run is like that" if is_narrow else "there are no runs yet; try `windlass run train.py`")


def _collect(pages: Iterator[FoundPage]) -> tuple[list[FoundRun], list[str]]:
    """The runs, and the columns that they were searched by."""
    found: list[FoundRun] = []
    named: list[str] = []
    for page in pages:
        found += page.runs
        named = named or page.named
        for remark in page.remarks:
            notice(remark)
    return found, named


def _show(found: list[FoundRun], wanted: list[str], named: list[str], most: int) -> None:
    from windlass.cli.found import found_table

    print(found_table(found[:most], wanted, named, sys.stdout), flush=True)
    if len(found) > most:
        notice(f"the first {most:,}; -n shows more")


def _checked(wanted: list[str]) -> list[str]:
    from windlass.wire.search import column_of

    for name in wanted:
        column_of(name)
    return wanted


def _is_column(name: str) -> bool:
    """Views of older servers may have any words for columns."""
    try:
        return bool(_checked([name]))
    except InvalidInput:
        return False


def _known(found: list[FoundRun], wanted: list[str], *, lenient: bool) -> list[str]:
    """`lenient`: columns of a view, which none of these runs need have."""
    from windlass.client.tables import rows_of
    from windlass.core.names import missing
    from windlass.wire.search import column_of

    if not wanted:
        return []
    known, _ = rows_of(found)
    wrong = [name for name in wanted if column_of(name) not in known]
    if wrong and not lenient:
        raise InvalidInput(missing("no run has a column", wrong[0], [name for name in known if "." in name]))
    return [name for name in wanted if name not in wrong]
