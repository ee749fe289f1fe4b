"""What a checkpoint consists of, and which epoch it is of: known also where the server cannot see its folder."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = "0025"

_Json = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("epoch", sa.BigInteger))
    op.create_table(
        "checkpoint_files",
        sa.Column("checkpoint_id", sa.String(32), sa.ForeignKey("checkpoints.id"), primary_key=True),
        sa.Column("files", _Json, nullable=False),
    )
