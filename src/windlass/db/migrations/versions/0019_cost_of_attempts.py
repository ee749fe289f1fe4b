"""What attempts cost an hour, by the prices of the nodes that they were placed on."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("usd_per_hour", sa.Float(53)))
