"""Tables of metrics: every point, a summary per run and metric, progress per run, and how far each source has come."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Integer, String, Table

from windlass.db.metadata import Seconds, metadata

_Seq = BigInteger().with_variant(Integer, "sqlite")

points = Table(
    "metric_points",
    metadata,
    Column("run_id", String(32), ForeignKey("runs.id"), primary_key=True),
    Column("name", String(250), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # order of arrival within run and name
    Column("step", BigInteger),
    Column("at", Seconds, nullable=False),
    Column("value", Float(53)),  # null is NaN: SQLite has no other
    sqlite_with_rowid=False,
)

summaries = Table(
    "metric_summaries",
    metadata,
    Column("run_id", String(32), ForeignKey("runs.id"), primary_key=True),
    Column("name", String(250), primary_key=True),
    Column("last", Float(53)),
    Column("last_step", BigInteger),
    Column("min", Float(53)),
    Column("max", Float(53)),
    Column("points", BigInteger, nullable=False),
)

progress = Table(
    "run_progress",
    metadata,
    Column("run_id", String(32), ForeignKey("runs.id"), primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("total", BigInteger),
    Column("at", Seconds, nullable=False),
    # Where the current attempt began to report: the speed since then gives the ETA.
    Column("first_step", BigInteger, nullable=False),
    Column("first_at", Seconds, nullable=False),
)

sources = Table(
    "metric_sources",
    metadata,
    Column("run_id", String(32), ForeignKey("runs.id"), primary_key=True),
    Column("source", String(100), primary_key=True),
    Column("position", BigInteger, nullable=False),  # the next point (or byte of a spool) expected from it
)
