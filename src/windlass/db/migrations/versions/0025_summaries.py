"""Runs and their metrics are joined by index on PostgreSQL: it needs one collation on both sides."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("metric_summaries", "run_id", type_=sa.String(32, collation="C"), existing_nullable=False)
