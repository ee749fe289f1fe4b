"""Searches that have a name."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0019"

_Json = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "saved_views",
        sa.Column("project", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("where", sa.Text),
        sa.Column("order", _Json, nullable=False),
        sa.Column("columns", _Json, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("updated_at", sa.Float(53), nullable=False),
    )
