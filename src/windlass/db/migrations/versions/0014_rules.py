"""Rules over the metrics of runs, and what they have seen; and what lineage looks things up by."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"

_Json = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "run_rules",
        sa.Column("run_id", sa.String(32), sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("rule", _Json, nullable=False),
        sa.Column("watched", _Json, nullable=False),
        sa.Column("silent", sa.Boolean, nullable=False),
    )
    op.create_index("ix_run_rules_silent", "run_rules", ["silent", "run_id"])
    op.create_index("ix_runs_clone_of", "runs", ["clone_of"])
    op.create_index("ix_logged_models_source_run", "logged_models", ["source_run_id"])
    op.create_index("ix_run_models_model", "run_models", ["model_id"])
    op.create_index("ix_model_versions_model", "model_versions", ["model_id"])
