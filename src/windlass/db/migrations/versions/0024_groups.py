"""Groups are found without a look at all tags."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"

_IS_GROUP = sa.text("key = 'group'")


def upgrade() -> None:
    op.create_index("ix_run_tags_group", "run_tags", ["run_id"], sqlite_where=_IS_GROUP, postgresql_where=_IS_GROUP)
