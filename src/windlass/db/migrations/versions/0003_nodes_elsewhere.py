"""Nodes that reach the server over HTTP: their plans and reports, and the logs they send."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"

_Json = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
_Seconds = sa.Float(53)


def upgrade() -> None:
    op.create_table(
        "attempt_nodes",
        sa.Column("attempt_id", sa.String(48), primary_key=True),
        sa.Column("node_rank", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("plan", _Json, nullable=False),
        sa.Column("secrets", sa.LargeBinary),
        sa.Column("incarnation", sa.String(64)),
        sa.Column("host", sa.String(200)),
        sa.Column("address", sa.String(200)),
        sa.Column("port", sa.Integer),
        sa.Column("fetched_at", _Seconds),
        sa.Column("reported_at", _Seconds),
        sa.Column("version", sa.Integer, nullable=False, server_default="0"),
        sa.Column("status", _Json),
        sa.Column("outcome", _Json),
        sa.Column("usage", _Json),
        sa.Column("environment", _Json),
        sa.Column("notice", _Json),
        sa.Column("stop", _Json),
        sa.Column("closed_at", _Seconds),
    )
    op.create_index("ix_attempt_nodes_closed", "attempt_nodes", ["closed_at"])
    op.create_table(
        "log_files",
        *_log_key(),
        sa.Column("size", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "log_chunks",
        *_log_key(),
        sa.Column("start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary),
        sa.Column("blob", sa.String(64)),
    )
    op.create_table(
        "log_watches",
        sa.Column("attempt_id", sa.String(48), primary_key=True),
        sa.Column("until", _Seconds, nullable=False),
    )


def _log_key() -> tuple[sa.Column[str], sa.Column[int], sa.Column[str]]:
    return (
        sa.Column("attempt_id", sa.String(48), primary_key=True),
        sa.Column("node_rank", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(40), primary_key=True),
    )
