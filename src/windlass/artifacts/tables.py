"""Tables of artifacts.

A blob has its row before it is placed and as long as it is there, so that none is ever forgotten; a name or a part
points to it. Folders have rows of their own: a listing reads what it lists.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, Table, Text

from windlass.db.metadata import Seconds, metadata

# Trees are ranges of names, which is right byte by byte only.
Name = Text().with_variant(Text(collation="C"), "postgresql")

artifacts = Table(
    "artifacts",
    metadata,
    Column("folder", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("digest", String(64)),  # NULL: a folder
    Column("size_bytes", BigInteger),
    Column("created_at", Seconds, nullable=False),
    Index("ix_artifacts_digest", "digest"),
    sqlite_with_rowid=False,
)

artifact_blobs = Table(
    "artifact_blobs",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("touched_at", Seconds, nullable=False),  # when somebody last began or ceased to name it
    Index("ix_artifact_blobs_touched", "touched_at"),
)

artifact_uploads = Table(
    "artifact_uploads",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("path", Text, nullable=False),
    Column("created_at", Seconds, nullable=False),
    Column("touched_at", Seconds, nullable=False),
    Index("ix_artifact_uploads_touched", "touched_at"),
)

artifact_parts = Table(
    "artifact_parts",
    metadata,
    Column("upload_id", String(64), ForeignKey("artifact_uploads.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Index("ix_artifact_parts_digest", "digest"),
)
