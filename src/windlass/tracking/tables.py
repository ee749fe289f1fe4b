"""Tables of metrics (every point, a summary per run and metric, progress per run, how far each source has come) and of
logs that nodes sent: which files, and their bytes in chunks.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Integer, LargeBinary, String, Table

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
