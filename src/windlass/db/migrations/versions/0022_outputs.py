"""Folders whose files are to become artifacts of their runs."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

_WAITING = sa.text("outputs_in IS NOT NULL")


def upgrade() -> None:
    op.add_column("attempts", sa.Column("outputs_in", sa.Text))
    op.create_index("ix_attempts_outputs", "attempts", ["id"], sqlite_where=_WAITING, postgresql_where=_WAITING)
