"""Tables of runs, attempts, events and sealed secrets."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    false,
    text,
)

from windlass.db.metadata import Json, RunId, Seconds, metadata

_Seq = BigInteger().with_variant(Integer, "sqlite")
_HAS_OUTPUTS = text("outputs_in IS NOT NULL")
_TO_BE_ARCHIVED = text("released_at IS NOT NULL AND archived_at IS NULL")

runs = Table(
    "runs",
    metadata,
    Column("id", RunId, primary_key=True),
    Column("name", String(64), nullable=False),
    Column("project", String(64), nullable=False),
    Column("user", String(200)),
    Column("state", String(16), nullable=False),
    Column("version", Integer, nullable=False),  # counts changes; every write is guarded by it
    Column("spec", Json, nullable=False),
    Column("argv", Json, nullable=False),  # what is started, params filled in
    Column("tags", Json, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("code_digest", String(64)),
    Column("origin", Json, nullable=False),
    Column("clone_of", String(32)),
    Column("submitted_at", Seconds, nullable=False),
    Column("queued_at", Seconds, nullable=False),  # the place in the queue; renewed by a resume
    Column("started_at", Seconds),
    Column("ended_at", Seconds),
    Column("retry_at", Seconds),
    Column("cancel_requested_at", Seconds),
    Column("cancel_grace_s", Float),
    # What is asked of each node, resolved at submission.
    Column("priority", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("cpus", Float, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("gpu_type", String(64)),
    # How it ended, and what it used so far (ended attempts only).
    Column("attempt_count", Integer, nullable=False),
    Column("first_attempt", Integer, nullable=False),  # since the last resume: earlier failures count no more
    Column("exit", Json),
    Column("cpu_hours", Float, nullable=False),
    Column("gpu_hours", Float, nullable=False),
    Column("cost_usd", Float, nullable=False),
    Column("ran_s", Float(53), nullable=False, server_default="0"),  # by ended attempts, since the last resume
    Column("preemptions", Integer, nullable=False, server_default="0"),  # how often it was stopped for others
    Column("idempotency_key", String(200)),
    Column("request_digest", String(64)),
    Index("ix_runs_idempotency_key", "idempotency_key", unique=True),
    Index("ix_runs_submitted", "submitted_at", "id"),
    Index("ix_runs_state_submitted", "state", "submitted_at", "id"),
    Index("ix_runs_project_submitted", "project", "submitted_at", "id"),
    Index("ix_runs_project_state_submitted", "project", "state", "submitted_at", "id"),
    Index("ix_runs_name_submitted", "name", "submitted_at"),
    Index("ix_runs_clone_of", "clone_of"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", String(48), primary_key=True),
    Column("run_id", String(32), ForeignKey("runs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("engine", String(32), nullable=False),
    Column("placement", Json, nullable=False),
    Column("created_at", Seconds, nullable=False),
    Column("started_at", Seconds),
    Column("ended_at", Seconds),
    Column("released_at", Seconds),  # the engine has been told to forget it
    Column("exit", Json),
    Column("log_dirs", Json, nullable=False),
    Column("environment_digest", String(64)),
    Column("usage", Json),
    Column("slot", Integer, nullable=False, server_default="0"),  # whose business it is among controllers
    Column("detail", Text),  # what the engine says about it
    Column("unknown_since", Seconds),  # the engine cannot be asked, or cannot tell
    Column("archived_at", Seconds),  # its logs are in the blobs
    Column("recoveries", Integer, nullable=False, server_default="0"),  # of those in place, how many are on record
    Column("recovered_at", Seconds),  # when it had gone beyond where the attempt before it died
    Column("queued_at", Seconds),  # since when its run waited for it
    Column("giving_way", Json),  # the scheduler wants it stopped: see `records.GivingWay`
    # Of its newest checkpoint; here too, so that a pass over all runs need not read the catalogue.
    Column("saved_at", Seconds),
    Column("heeds_notice", Boolean, nullable=False, server_default=false()),  # it saves when it is warned
    Column("usd_per_hour", Float(53)),  # all of its placement; by the price book where it is not known
    Column("outputs_in", Text),  # the folder that its run has left results in, until they are artifacts
    Index("ix_attempts_outputs", "id", sqlite_where=_HAS_OUTPUTS, postgresql_where=_HAS_OUTPUTS),
    Index("ix_attempts_run_number", "run_id", "number", unique=True),
    Index("ix_attempts_state", "state"),
    Index("ix_attempts_released", "released_at"),
    Index(
        "ix_attempts_unarchived",
        "released_at",
        "id",
        sqlite_where=_TO_BE_ARCHIVED,
        postgresql_where=_TO_BE_ARCHIVED,
    ),
)

# Interpreter, packages and devices: the same for thousands of attempts, so each is kept once.
environments = Table(
    "environments",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("data", Json, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("seq", _Seq, primary_key=True, autoincrement=True),
    Column("run_id", String(32), ForeignKey("runs.id"), nullable=False),
    Column("attempt", Integer),
    Column("kind", String(32), nullable=False),
    Column("at", Seconds, nullable=False),
    Column("message", Text, nullable=False),
    Column("data", Json, nullable=False),
    Index("ix_events_run", "run_id", "seq"),
)

secrets = Table(
    "run_secrets",
    metadata,
    Column("run_id", String(32), ForeignKey("runs.id"), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
)
