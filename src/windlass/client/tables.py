"""Runs as a table: one row a run, a column for each param, metric and tag; as rows, CSV, Parquet or a DataFrame."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from windlass.core.errors import InvalidInput
from windlass.wire.search import FACTS, column_of

if TYPE_CHECKING:
    from windlass.wire.search import FoundRun

_TIMES = ("submitted_at", "started_at", "ended_at")


def rows_of(found: Iterable[FoundRun]) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns that any of them has, and the rows. Params are text, as they were given; metrics are numbers."""
    columns: dict[str, dict[str, None]] = {"params": {}, "metrics": {}, "tags": {}}
    rows = []
    for run in found:
        row: dict[str, Any] = {name: getattr(run, name) for name in FACTS}
        if run.duration_s is not None:
            row["duration_s"] = round(run.duration_s, 3)  # the difference of two times has digits that mean nothing
        for kind, held in (("params", run.params), ("metrics", run.metrics), ("tags", run.tags)):
            for key, value in held.items():
                columns[kind][f"{kind}.{key}"] = None
                row[f"{kind}.{key}"] = value
        rows.append(row)
    return [*FACTS, *(name for kind in columns.values() for name in sorted(kind))], rows


def write_csv(found: Iterable[FoundRun], out: TextIO, only: Sequence[str] = ()) -> None:
    """Columns of `only` are headed as they are named there. Times are ISO 8601, of UTC."""
    columns, rows = rows_of(found)
    wanted = {name: column_of(name) for name in only} or {name: name for name in columns}
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(wanted)
    for row in rows:
        writer.writerow([_as_text(column, row.get(column)) for column in wanted.values()])


def _as_text(column: str, value: Any) -> Any:
    if column not in _TIMES or value is None:
        return value
    try:
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return value  # clients may say any number


def data_frame(found: Iterable[FoundRun]) -> Any:
    """Times are of UTC, to the millisecond; those that pandas cannot tell are none: clients may say any number."""
    try:
        import pandas
    except ImportError:
        raise InvalidInput("pandas is not installed", hint="pip install 'windlass[tables]'") from None
    columns, rows = rows_of(found)
    frame = pandas.DataFrame({name: [row.get(name) for row in rows] for name in columns}, columns=columns)
    for name in _TIMES:
        frame[name] = pandas.to_datetime(frame[name], unit="s", utc=True, errors="coerce").dt.round("ms")
    for name in columns:
        if name.startswith("metrics."):
            frame[name] = frame[name].astype(float)
    return frame


def write_parquet(found: Iterable[FoundRun], path: str, only: Sequence[str] = ()) -> None:
    frame = data_frame(found)
    if only:
        frame = frame.reindex(columns=[column_of(name) for name in only]).set_axis(list(only), axis="columns")
    try:
        frame.to_parquet(path, index=False)
    except ImportError:
        raise InvalidInput("writing Parquet needs pyarrow", hint="pip install 'windlass[tables]'") from None
    except OSError as error:
        raise InvalidInput(
            f"'{path}' cannot be written: {error.strerror or error}", hint="name a file in a folder that is there"
        ) from error
