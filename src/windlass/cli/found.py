"""Runs that were found, as a table: which columns it has, and what stands in them. Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from windlass.cli.charts import number
from windlass.cli.moments import age
from windlass.cli.terminal import STATE_STYLES, Cell, cells, fit, table, width_of
from windlass.client.tables import rows_of
from windlass.core.quantities import format_duration
from windlass.wire.search import LONG, column_of

if TYPE_CHECKING:
    from windlass.wire.search import FoundRun

_ALWAYS = ("id", "name", "state")
_TIMES = ("submitted_at", "started_at", "ended_at")
_MOST_CHOSEN = 12  # where a pipe has no edge
_LONGEST = 40  # characters of a value; a param can have thousands
_LONGEST_NAME = 24
_SYSTEM = "metrics.system/"


def found_table(found: Sequence[FoundRun], wanted: Sequence[str], named: Sequence[str], stream: TextIO) -> str:
    """`wanted`: the columns; without them those that say most. `named`: what the search was about."""
    known, rows = rows_of(found)
    columns = list(wanted) or choose_columns(known, rows, named)
    now = time.time()
    heads: list[list[Cell | str]] = [
        [Cell(row["id"], ("bold",)), row["name"], Cell(row["state"], STATE_STYLES.get(row["state"], ()))]
        for row in rows
    ]
    more = [[_text(column_of(name), row, now) for row in rows] for name in columns]
    headers = headers_of(columns)
    if not wanted:
        room = width_of(stream) - _width_of_heads(heads)
        more = more[: _that_fit([[header, *column] for header, column in zip(headers, more, strict=True)], room)]
    body = [[*head, *(column[place] for column in more)] for place, head in enumerate(heads)]
    return table(["ID", "NAME", "STATE", *headers[: len(more)]], body, flexible=1, stream=stream)


def choose_columns(known: Sequence[str], rows: Sequence[Mapping[str, Any]], named: Sequence[str]) -> list[str]:
    """What was searched by, metrics of the runs' own, params that tell them apart, age and cost: the likeliest to be
    wanted first."""
    said = [column_of(name) for name in named]
    metrics = [name for name in known if name.startswith("metrics.") and not name.startswith(_SYSTEM)]
    params = [name for name in known if name.startswith("params.")]
    differing = [name for name in params if len(rows) == 1 or len({row.get(name) for row in rows}) > 1]
    rest = [*metrics, *differing]
    chosen = dict.fromkeys([*said, *rest[:_MOST_CHOSEN], "submitted_at", "cost_usd"])
    there = [name for name in chosen if name in said or any(row.get(name) is not None for row in rows)]
    return [LONG.get(name, name) for name in there if name not in _ALWAYS]


def _width_of_heads(heads: Sequence[Sequence[Cell | str]]) -> int:
    texts = [[cell.text if isinstance(cell, Cell) else cell for cell in head] for head in heads]
    ids, names, states = (max(map(cells, column)) for column in zip(*texts, strict=True))
    return ids + 2 + min(_LONGEST_NAME, max(4, names)) + 2 + max(5, states)


def _that_fit(columns: Sequence[Sequence[str]], room: int) -> int:
    for count, column in enumerate(columns):
        room -= 2 + max(map(cells, column))
        if room < 0:
            return count
    return len(columns)


def headers_of(columns: Sequence[str]) -> list[str]:
    """The key of a metric, param or tag alone, and its whole name where others are called that too."""
    whole = [column_of(name) for name in columns]
    short = [column.partition(".")[2] or name for column, name in zip(whole, columns, strict=True)]
    count = Counter([*_ALWAYS, *short])
    return [column if count[key] > 1 and "." in column else key for column, key in zip(whole, short, strict=True)]


def _text(column: str, row: Mapping[str, Any], now: float) -> str:
    value = row.get(column)
    if value is None:
        return "-"
    if column in _TIMES:
        return f"{age(now - value)} ago"
    if column == "duration_s":
        return format_duration(value)
    if column == "cost_usd":
        return f"${value:.4f}"
    return number(value) if isinstance(value, float) else fit(" ".join(str(value).split()), _LONGEST)
