"""Who has told a run's progress, and of which attempt."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("run_progress", sa.Column("teller", sa.Integer))
    op.add_column("run_progress", sa.Column("attempt", sa.Integer))
