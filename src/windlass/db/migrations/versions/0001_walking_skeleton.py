"""Runs, attempts, events, secrets, metrics, nodes, leases."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

_Json = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
_Seconds = sa.Float(53)
_RunId = sa.String(32).with_variant(sa.String(32, collation="C"), "postgresql")
_Seq = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _run_id(*, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column("run_id", sa.String(32), sa.ForeignKey("runs.id"), nullable=False, primary_key=primary_key)


def upgrade() -> None:
    _create_runs()
    _create_attempts()
    _create_metrics()
    op.create_table(
        "nodes",
        sa.Column("engine", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("cpus", sa.Float, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("gpu_type", sa.String(64)),
        sa.Column("seen_at", _Seconds, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("holder", sa.String(100), nullable=False),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("pid_start", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", _RunId, primary_key=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("user", sa.String(200)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("spec", _Json, nullable=False),
        sa.Column("argv", _Json, nullable=False),
        sa.Column("tags", _Json, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("code_digest", sa.String(64)),
        sa.Column("origin", _Json, nullable=False),
        sa.Column("clone_of", sa.String(32)),
        sa.Column("submitted_at", _Seconds, nullable=False),
        sa.Column("queued_at", _Seconds, nullable=False),
        sa.Column("started_at", _Seconds),
        sa.Column("ended_at", _Seconds),
        sa.Column("retry_at", _Seconds),
        sa.Column("cancel_requested_at", _Seconds),
        sa.Column("cancel_grace_s", sa.Float),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
        sa.Column("cpus", sa.Float, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("gpu_type", sa.String(64)),
        sa.Column("attempt_count", sa.Integer, nullable=False),
        sa.Column("first_attempt", sa.Integer, nullable=False),
        sa.Column("exit", _Json),
        sa.Column("cpu_hours", sa.Float, nullable=False),
        sa.Column("gpu_hours", sa.Float, nullable=False),
        sa.Column("cost_usd", sa.Float, nullable=False),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("request_digest", sa.String(64)),
    )
    op.create_index("ix_runs_idempotency_key", "runs", ["idempotency_key"], unique=True)
    op.create_index("ix_runs_submitted", "runs", ["submitted_at", "id"])
    op.create_index("ix_runs_state_submitted", "runs", ["state", "submitted_at", "id"])
    op.create_index("ix_runs_project_submitted", "runs", ["project", "submitted_at", "id"])
    op.create_index("ix_runs_project_state_submitted", "runs", ["project", "state", "submitted_at", "id"])
    op.create_index("ix_runs_name_submitted", "runs", ["name", "submitted_at"])


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(48), primary_key=True),
        _run_id(),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("engine", sa.String(32), nullable=False),
        sa.Column("placement", _Json, nullable=False),
        sa.Column("created_at", _Seconds, nullable=False),
        sa.Column("started_at", _Seconds),
        sa.Column("ended_at", _Seconds),
        sa.Column("released_at", _Seconds),
        sa.Column("exit", _Json),
        sa.Column("log_dirs", _Json, nullable=False),
        sa.Column("environment_digest", sa.String(64)),
        sa.Column("usage", _Json),
    )
    op.create_index("ix_attempts_run_number", "attempts", ["run_id", "number"], unique=True)
    op.create_index("ix_attempts_state", "attempts", ["state"])
    op.create_index("ix_attempts_released", "attempts", ["released_at"])
    op.create_table(
        "environments",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("data", _Json, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("seq", _Seq, primary_key=True, autoincrement=True),
        _run_id(),
        sa.Column("attempt", sa.Integer),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("at", _Seconds, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("data", _Json, nullable=False),
    )
    op.create_index("ix_events_run", "events", ["run_id", "seq"])
    op.create_table(
        "run_secrets",
        _run_id(primary_key=True),
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )


def _create_metrics() -> None:
    op.create_table(
        "metric_points",
        _run_id(primary_key=True),
        sa.Column("name", sa.String(250), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("step", sa.BigInteger),
        sa.Column("at", _Seconds, nullable=False),
        sa.Column("value", sa.Float(53)),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metric_summaries",
        _run_id(primary_key=True),
        sa.Column("name", sa.String(250), primary_key=True),
        sa.Column("last", sa.Float(53)),
        sa.Column("last_step", sa.BigInteger),
        sa.Column("min", sa.Float(53)),
        sa.Column("max", sa.Float(53)),
        sa.Column("points", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "run_progress",
        _run_id(primary_key=True),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("total", sa.BigInteger),
        sa.Column("at", _Seconds, nullable=False),
        sa.Column("first_step", sa.BigInteger, nullable=False),
        sa.Column("first_at", _Seconds, nullable=False),
    )
    op.create_table(
        "metric_sources",
        _run_id(primary_key=True),
        sa.Column("source", sa.String(100), primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
    )
