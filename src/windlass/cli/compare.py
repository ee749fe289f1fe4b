"""`compare`: runs side by side."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.charts import number
from windlass.cli.connection import open_client
from windlass.cli.terminal import Cell, next_steps, notice, paint_for, say, say_json, table
from windlass.core.errors import InvalidInput

if TYPE_CHECKING:
    from windlass.wire.comparison import ComparedRow, Comparison

_TITLES = {
    "run": "run",
    "params": "params",
    "metrics": "metrics (newest value)",
    "data": "data",
    "code": "code",
    "environment": "environment",
    "tags": "tags",
    "cost": "cost",
}
_MOST = 20  # that are compared at once
_LONGEST = 40  # characters of a value; a command can have thousands


def compare(
    ctx: typer.Context,
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN RUN...", help="Two or more: ids, or names.")] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="The newest runs of a group, 20 at most.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="What is equal too.")] = False,
    code: Annotated[
        bool, typer.Option("--code", help="Of two runs: the difference of their code, line by line.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show what differs between runs: params, metrics, data, code, environment, cost."""
    client = open_client(ctx)
    runs = [*(runs or []), *([run.id for run in client.search(group=group, limit=_MOST)] if group else [])]
    if len(runs) < 2 or (code and len(runs) != 2):
        wanted = "two runs" if code else "two runs or more"
        raise InvalidInput(f"{wanted} can be compared, not {len(runs)}", hint="windlass compare RUN RUN")
    if code:
        _show_code(client.code_diff(runs[0], runs[1]))
        return
    found = client.compare(runs, everything=everything)
    if json:
        say_json(found.model_dump(mode="json"))
        return
    _show(found)
    if len(runs) == 2 and any(topic.topic == "code" for topic in found.topics):
        next_steps(f"windlass compare {runs[0]} {runs[1]} --code")


def _show(found: Comparison) -> None:
    headers = ["", *(run.name for run in found.runs)]
    ids: list[Cell | str] = [Cell("id", ("dim",)), *(Cell(run.id, ("dim",)) for run in found.runs)]
    states: list[Cell | str] = [Cell("state", ("dim",)), *(Cell(run.state) for run in found.runs)]
    rows = [ids, states]
    for topic in found.topics:
        rows.append([Cell(_TITLES[topic.topic], ("bold",)), *("" for _ in found.runs)])
        rows += [_row(row) for row in topic.rows]
    say(table(headers, rows, flexible=0, stream=sys.stdout))
    if not any(row.differs for topic in found.topics for row in topic.rows):
        notice("nothing differs")


def _row(row: ComparedRow) -> list[Cell | str]:
    cells: list[Cell | str] = [Cell(f"  {row.key}", () if row.differs else ("dim",))]
    for place, value in enumerate(row.values):
        if value is None:
            cells.append(Cell("-", ("dim",)))
            continue
        text = number(value) if isinstance(value, (int, float)) else value
        text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
        differs = value != row.values[0]
        cells.append(Cell(text, ("green",) if place == row.best else ("yellow",) if differs else ()))
    return cells


def _show_code(diff: str) -> None:
    paint = paint_for(sys.stdout)
    styles = {"+": ("green",), "-": ("red",), "@": ("cyan",)}
    for line in diff.splitlines():
        head = line.startswith(("+++", "---"))
        say(paint(line, *(("bold",) if head else styles.get(line[:1], ()))))
    if not diff:
        notice("their code is the same")
