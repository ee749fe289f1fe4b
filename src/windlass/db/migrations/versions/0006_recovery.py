"""Nodes that are set aside, and which recoveries of an attempt are on record."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_Seconds = sa.Float(53)


def upgrade() -> None:
    op.create_table(
        "set_aside",
        sa.Column("engine", sa.String(32), primary_key=True),
        sa.Column("node", sa.String(200), primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("since", _Seconds, nullable=False),
        sa.Column("until", _Seconds),
        sa.Column("times", sa.Integer, nullable=False),
        sa.Column("by_hand", sa.Boolean, nullable=False),
        sa.Column("run_id", sa.String(32)),
    )
    op.add_column("attempts", sa.Column("recoveries", sa.Integer, nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("recovered_at", _Seconds))
