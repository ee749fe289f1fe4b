"""Metrics in compressed columns; summaries also of runs whose rows are elsewhere, with the time of the latest point."""

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
    _free_summaries()


def _free_summaries() -> None:
    """Take the reference to `runs` away. Servers of the version before read and write them as they did."""
    if op.get_bind().dialect.name == "postgresql":
        for known in sa.inspect(op.get_bind()).get_foreign_keys("metric_summaries"):
            op.drop_constraint(str(known["name"]), "metric_summaries", type_="foreignkey")
        op.add_column("metric_summaries", sa.Column("last_at", _Number))
    else:
        op.rename_table("metric_summaries", "metric_summaries_before")
        op.create_table(
            "metric_summaries",
            sa.Column("run_id", sa.String(32), primary_key=True),
            sa.Column("name", sa.String(250), primary_key=True),
            sa.Column("last", _Number),
            sa.Column("last_step", sa.BigInteger),
            sa.Column("min", _Number),
            sa.Column("max", _Number),
            sa.Column("points", sa.BigInteger, nullable=False),
            sa.Column("last_at", _Number),
        )
        kept = "run_id, name, last, last_step, min, max, points"
        op.execute(f"INSERT INTO metric_summaries ({kept}) SELECT {kept} FROM metric_summaries_before")
        op.drop_table("metric_summaries_before")
    op.execute(
        "UPDATE metric_summaries SET last_at = (SELECT max(p.at) FROM metric_points p"
        " WHERE p.run_id = metric_summaries.run_id AND p.name = metric_summaries.name)"
    )
    op.create_index("ix_metric_summaries_last", "metric_summaries", ["name", "last"])
