"""Tables of metrics (points in compressed columns, a summary per run and metric, progress per run, how far each source
has come) and of logs that nodes sent: which files, and their bytes in chunks.

Points arrive in tails, a row for each batch of a run, with all of its metrics together; tails become chunks, rows of
one metric in order, with what charts need of them beside the points. Neither refers to `runs`: what MLflow's client has
begun is no run of ours, and has its metrics here too.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, LargeBinary, String, Table

from windlass.db.metadata import RunId, Seconds, metadata

_Seq = BigInteger().with_variant(Integer, "sqlite")

# What the version before wrote: a row for every point. Still read, and moved to chunks.
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

tails = Table(
    "metric_tails",
    metadata,
    Column("id", _Seq, primary_key=True, autoincrement=True),
    Column("run_id", String(32), nullable=False),
    Column("points", BigInteger, nullable=False),
    Column("metrics", Integer, nullable=False),  # how many
    Column("size", BigInteger, nullable=False),  # bytes of data
    Column("data", LargeBinary, nullable=False),  # see `tracking.blocks`
    # Covers what the compactor asks of all of them, without their data.
    Index("ix_metric_tails_run", "run_id", "points", "metrics", "size"),
)

# Columns in this order: SQLite reads no further into a row than it has to.
chunks = Table(
    "metric_chunks",
    metadata,
    Column("run_id", String(32), primary_key=True),
    Column("name", String(250), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # tells them apart, no more
    Column("points", Integer, nullable=False),
    # Its first and last point in the order of (step, at), no step before all steps; and its span of time.
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("first_at", Seconds, nullable=False),
    Column("last_at", Seconds, nullable=False),
    Column("earliest", Seconds, nullable=False),
    Column("latest", Seconds, nullable=False),
    Column("coarse", LargeBinary, nullable=False),  # a roll-up of every 1024 points, see `tracking.rollups`
    Column("groups", LargeBinary, nullable=False),  # of every 64 points
    Column("data", LargeBinary),  # the points, see `tracking.columns`; null: only the roll-ups are kept by now
    Index("ix_metric_chunks_latest", "latest"),
)

summaries = Table(
    "metric_summaries",
    metadata,
    Column("run_id", RunId, primary_key=True),
    Column("name", String(250), primary_key=True),
    # The latest point: the greatest by (step, at, value), as MLflow has it. Null is NaN.
    Column("last", Float(53)),
    Column("last_step", BigInteger),
    Column("min", Float(53)),  # of what is a number; null if nothing was
    Column("max", Float(53)),
    Column("points", BigInteger, nullable=False),  # as they arrived, repeated ones included
    Column("last_at", Seconds),
    Index("ix_metric_summaries_last", "name", "last"),
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
    # Who told it (see `tracking.points`), and of which attempt. Null: the version before did not say.
    Column("teller", Integer),
    Column("attempt", Integer),
)

sources = Table(
    "metric_sources",
    metadata,
    Column("run_id", String(32), ForeignKey("runs.id"), primary_key=True),
    Column("source", String(100), primary_key=True),
    Column("position", BigInteger, nullable=False),  # the next point (or byte of a spool) expected from it
)

# Rank logs of nodes that share no folder with the server. What a chunk holds is in `data` until it is archived, and in
# the blob from then on; compressed (zlib) in both.
log_files = Table(
    "log_files",
    metadata,
    Column("attempt_id", String(48), primary_key=True),
    Column("node_rank", Integer, primary_key=True, autoincrement=False),
    Column("name", String(40), primary_key=True),
    Column("size", BigInteger, nullable=False),  # the next byte expected
)

log_chunks = Table(
    "log_chunks",
    metadata,
    Column("attempt_id", String(48), primary_key=True),
    Column("node_rank", Integer, primary_key=True, autoincrement=False),
    Column("name", String(40), primary_key=True),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("size", BigInteger, nullable=False),
    Column("data", LargeBinary),
    Column("blob", String(64)),
)

# Somebody follows these attempts' logs until then: their nodes send new lines at once, others take their time.
log_watches = Table(
    "log_watches",
    metadata,
    Column("attempt_id", String(48), primary_key=True),
    Column("until", Seconds, nullable=False),
)
