"""Registered models, their versions, and webhooks."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_Seconds = sa.Float(53)
_Name = sa.String(256).with_variant(sa.String(256, collation="C"), "postgresql")


def upgrade() -> None:
    _registry()
    _webhooks()


def _of_model() -> sa.ForeignKey:
    return sa.ForeignKey("registered_models.name", onupdate="CASCADE", ondelete="CASCADE")


def _registry() -> None:
    op.create_table(
        "registered_models",
        sa.Column("name", _Name, primary_key=True),
        sa.Column("description", sa.Text),
        sa.Column("created_at", _Seconds, nullable=False),
        sa.Column("updated_at", _Seconds, nullable=False),
    )
    op.create_table(
        "registered_model_tags",
        sa.Column("name", _Name, _of_model(), primary_key=True),
        sa.Column("key", sa.String(250), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_index("ix_registered_model_tags_key", "registered_model_tags", ["key", "name"])
    op.create_table(
        "registered_model_aliases",
        sa.Column("name", _Name, _of_model(), primary_key=True),
        sa.Column("alias", sa.String(255), primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_table(
        "model_versions",
        sa.Column("name", _Name, _of_model(), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("stage", sa.String(20), nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("source", sa.Text),
        sa.Column("location", sa.Text),
        sa.Column("run_id", sa.String(256)),
        sa.Column("run_link", sa.Text),
        sa.Column("model_id", sa.String(64)),
        sa.Column("created_at", _Seconds, nullable=False),
        sa.Column("updated_at", _Seconds, nullable=False),
    )
    op.create_index("ix_model_versions_run", "model_versions", ["run_id"])
    op.create_index("ix_model_versions_updated", "model_versions", ["updated_at", "name", "version"])
    op.create_table(
        "model_version_tags",
        sa.Column("name", _Name, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(250), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["name", "version"],
            ["model_versions.name", "model_versions.version"],
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_model_version_tags_key", "model_version_tags", ["key", "name", "version"])


def _webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("secret", sa.LargeBinary),
        sa.Column("created_at", _Seconds, nullable=False),
        sa.Column("updated_at", _Seconds, nullable=False),
    )
    op.create_table(
        "webhook_events",
        sa.Column("webhook_id", sa.String(36), sa.ForeignKey("webhooks.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("event", sa.String(64), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
    )
    op.create_index("ix_webhook_events_event", "webhook_events", ["event"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("webhook_id", sa.String(36), sa.ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
        sa.Column("event", sa.String(64), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", _Seconds, nullable=False),
        sa.Column("claimed_by", sa.String(100)),
        sa.Column("response_status", sa.Integer),
        sa.Column("detail", sa.Text),
        sa.Column("created_at", _Seconds, nullable=False),
        sa.Column("ended_at", _Seconds),
    )
    op.create_index("ix_webhook_deliveries_webhook", "webhook_deliveries", ["webhook_id", "created_at"])
    waiting = sa.text("state = 'waiting'")
    op.create_index(
        "ix_webhook_deliveries_waiting",
        "webhook_deliveries",
        ["due_at"],
        sqlite_where=waiting,
        postgresql_where=waiting,
    )
    op.create_index("ix_webhook_deliveries_ended", "webhook_deliveries", ["ended_at"])
