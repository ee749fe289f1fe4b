"""The tables of checkpoints, and of what those that are there consist of: lists that nobody wants all of at once."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, Table, Text

from windlass.db.metadata import Json, Seconds, metadata

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("run_id", String(32), ForeignKey("runs.id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("epoch", BigInteger),
    Column("location", Text, nullable=False),
    Column("tier", String(32), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("file_count", Integer, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("plan", Text, nullable=False),
    Column("format", String(32), nullable=False),
    Column("reason", String(32), nullable=False),
    Column("metrics", Json, nullable=False),
    Column("state", String(16), nullable=False),
    Column("detail", Text),
    Column("created_at", Seconds, nullable=False),
    Column("verified_at", Seconds),
    Index("ix_checkpoints_run_step", "run_id", "step"),
    Index("ix_checkpoints_run_state", "run_id", "state", "step"),
)

checkpoint_files = Table(
    "checkpoint_files",
    metadata,
    Column("checkpoint_id", String(32), ForeignKey("checkpoints.id"), primary_key=True),
    Column("files", Json, nullable=False),  # name, size and sha256 of each
)
