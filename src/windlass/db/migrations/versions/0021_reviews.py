"""Questions that reviewers of traces are asked, and queues of traces that they go through."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

_Words = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _key(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _queue_id() -> sa.Column[str]:
    whose = sa.ForeignKey("review_queues.id", ondelete="CASCADE")
    return sa.Column("queue_id", sa.String(36), whose, primary_key=True)


def upgrade() -> None:
    op.create_table(
        "label_schemas",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("name", _key(250), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("form", sa.String(20), nullable=False),
        sa.Column("limits", sa.Text, nullable=False),
        sa.Column("instruction", sa.Text),
        sa.Column("comment", sa.Boolean, nullable=False),
        sa.Column("is_default", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_label_schemas_name", "label_schemas", ["experiment_id", "name"], unique=True)
    op.create_table(
        "review_queues",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("name", _Words, nullable=False),
        sa.Column("name_key", _key(500), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("created_by", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_review_queues_name", "review_queues", ["experiment_id", "name_key"], unique=True)
    op.create_table("review_queue_users", _queue_id(), sa.Column("user_id", _key(250), primary_key=True))
    op.create_index("ix_review_queue_users_user", "review_queue_users", ["user_id"])
    op.create_table("review_queue_schemas", _queue_id(), sa.Column("schema_id", sa.String(36), primary_key=True))
    op.create_table(
        "review_queue_items",
        _queue_id(),
        sa.Column("trace_id", _key(250), sa.ForeignKey("traces.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("completed_by", sa.Text),
        sa.Column("completed_ms", sa.BigInteger),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_review_queue_items_trace", "review_queue_items", ["trace_id"])
