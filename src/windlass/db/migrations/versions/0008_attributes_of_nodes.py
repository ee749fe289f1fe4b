"""What nodes are besides their size: labels, where they stand, what they cost, whether they can be taken away."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    # Servers of the version before write nodes without them while both are running.
    op.add_column("nodes", sa.Column("labels", sa.Text, nullable=False, server_default="[]"))
    op.add_column("nodes", sa.Column("topology", sa.Text, nullable=False, server_default="[]"))
    op.add_column("nodes", sa.Column("price_per_hour", sa.Float, nullable=False, server_default="0"))
    op.add_column("nodes", sa.Column("spot", sa.Boolean, nullable=False, server_default=sa.false()))
