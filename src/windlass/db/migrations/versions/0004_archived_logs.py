"""Logs of attempts that are over move to the blobs: when that was done, and an index of those still to be moved."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_TO_BE_MOVED = sa.text("released_at IS NOT NULL AND archived_at IS NULL")


def upgrade() -> None:
    op.add_column("attempts", sa.Column("archived_at", sa.Float(53)))
    op.create_index(
        "ix_attempts_unarchived",
        "attempts",
        ["released_at", "id"],
        sqlite_where=_TO_BE_MOVED,
        postgresql_where=_TO_BE_MOVED,
    )
