"""Runs as a table: one row a run, a column for each param, metric and tag; as rows, CSV, Parquet or a DataFrame."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from windlass.core.errors import InvalidInput

if TYPE_CHECKING:
    from windlass.wire.search import FoundRun

FACTS = (
    "id",
    "name",
    "state",
    "project",
    "user",
    "submitted_at",
    "started_at",
    "ended_at",
    "attempts",
    "cost_usd",
    "gpu_hours",
    "cpu_hours",
    "note",
)


def rows_of(found: Iterable[FoundRun]) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns that any of them has, and the rows. Params are text, as they were given; metrics are numbers."""
    columns: dict[str, dict[str, None]] = {"params": {}, "metrics": {}, "tags": {}}
    rows = []
    for run in found:
        row: dict[str, Any] = {name: getattr(run, name) for name in FACTS}
        for kind, held in (("params", run.params), ("metrics", run.metrics), ("tags", run.tags)):
            for key, value in held.items():
                columns[kind][f"{kind}.{key}"] = None
                row[f"{kind}.{key}"] = float(value) if kind == "metrics" else value
        rows.append(row)
    return [*FACTS, *(name for kind in columns.values() for name in sorted(kind))], rows


def write_csv(found: Iterable[FoundRun], out: TextIO, only: Sequence[str] = ()) -> None:
    columns, rows = rows_of(found)
    writer = csv.DictWriter(out, list(only) or columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def data_frame(found: Iterable[FoundRun]) -> Any:
    """Times are of UTC."""
    try:
        import pandas
    except ImportError:
        raise InvalidInput("pandas is not installed", hint="pip install 'windlass[tables]'") from None
    columns, rows = rows_of(found)
    frame = pandas.DataFrame({name: [row.get(name) for row in rows] for name in columns}, columns=columns)
    for name in ("submitted_at", "started_at", "ended_at"):
        frame[name] = pandas.to_datetime(frame[name], unit="s", utc=True)
    for name in columns:
        if name.startswith("metrics."):
            frame[name] = frame[name].astype(float)
    return frame


def write_parquet(found: Iterable[FoundRun], path: str, only: Sequence[str] = ()) -> None:
    frame = data_frame(found)
    if only:
        frame = frame.reindex(columns=list(only))
    try:
        frame.to_parquet(path, index=False)
    except ImportError:
        raise InvalidInput("writing Parquet needs pyarrow", hint="pip install 'windlass[tables]'") from None
