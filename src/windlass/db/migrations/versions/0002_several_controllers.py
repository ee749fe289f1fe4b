"""Several controllers, several engines: slots, what engines say, engine states, and who may still read the schema."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_Seconds = sa.Float(53)


def upgrade() -> None:
    # Defaults are for attempts that servers of the version before insert while both are running.
    op.add_column("attempts", sa.Column("slot", sa.Integer, nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("detail", sa.Text))
    op.add_column("attempts", sa.Column("unknown_since", _Seconds))
    op.create_table(
        "engines",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("unreachable_since", _Seconds),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("seen_at", _Seconds),
    )
    op.create_table(
        "schema_readers",
        sa.Column("oldest", sa.String(32), primary_key=True),
    )
    op.execute("INSERT INTO schema_readers (oldest) VALUES ('0001')")
