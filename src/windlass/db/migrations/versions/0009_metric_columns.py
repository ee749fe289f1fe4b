"""Metrics in compressed columns."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_Seq = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Number = sa.Float(53)


def upgrade() -> None:
    op.create_table(
        "metric_tails",
        sa.Column("id", _Seq, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("points", sa.BigInteger, nullable=False),
        sa.Column("metrics", sa.Integer, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_metric_tails_run", "metric_tails", ["run_id", "points", "metrics", "size"])
    op.create_table(
        "metric_chunks",
        sa.Column("run_id", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(250), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("points", sa.Integer, nullable=False),
        sa.Column("first_step", sa.BigInteger),
        sa.Column("last_step", sa.BigInteger),
        sa.Column("first_at", _Number, nullable=False),
        sa.Column("last_at", _Number, nullable=False),
        sa.Column("earliest", _Number, nullable=False),
        sa.Column("latest", _Number, nullable=False),
        sa.Column("coarse", sa.LargeBinary, nullable=False),
        sa.Column("groups", sa.LargeBinary, nullable=False),
        sa.Column("data", sa.LargeBinary),
    )
    op.create_index("ix_metric_chunks_latest", "metric_chunks", ["latest"])
