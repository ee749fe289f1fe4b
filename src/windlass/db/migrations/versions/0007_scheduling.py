"""Who gives way to whom, what a run would lose, and what projects have used."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"

_Seconds = sa.Float(53)
_Json = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("runs", sa.Column("ran_s", sa.Float(53), nullable=False, server_default="0"))
    op.add_column("runs", sa.Column("preemptions", sa.Integer, nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("queued_at", _Seconds))
    op.add_column("attempts", sa.Column("giving_way", _Json))
    op.add_column("attempts", sa.Column("saved_at", _Seconds))
    op.add_column("attempts", sa.Column("heeds_notice", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "project_usage",
        sa.Column("project", sa.String(64), primary_key=True),
        sa.Column("usage", sa.Float(53), nullable=False),
        sa.Column("at", _Seconds, nullable=False),
    )
