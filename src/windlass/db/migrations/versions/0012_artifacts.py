"""Artifacts: names over blobs."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_Seconds = sa.Float(53)
_Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("folder", _Name, primary_key=True),
        sa.Column("name", _Name, primary_key=True),
        sa.Column("digest", sa.String(64)),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("created_at", _Seconds, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_artifacts_digest", "artifacts", ["digest"])
    op.create_table(
        "artifact_blobs",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("touched_at", _Seconds, nullable=False),
    )
    op.create_index("ix_artifact_blobs_touched", "artifact_blobs", ["touched_at"])
    op.create_table(
        "artifact_uploads",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("created_at", _Seconds, nullable=False),
        sa.Column("touched_at", _Seconds, nullable=False),
    )
    op.create_index("ix_artifact_uploads_touched", "artifact_uploads", ["touched_at"])
    op.create_table(
        "artifact_parts",
        sa.Column(
            "upload_id", sa.String(64), sa.ForeignKey("artifact_uploads.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_artifact_parts_digest", "artifact_parts", ["digest"])
