"""Tables of the model registry. A version that was deleted leaves its row: its number is never given again."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, ForeignKeyConstraint, Index, Integer, String, Table, Text

from windlass.db.metadata import Seconds, metadata

# Names are ordered byte by byte, on either database.
_Name = String(256).with_variant(String(256, collation="C"), "postgresql")


def _of_model() -> ForeignKey:
    return ForeignKey("registered_models.name", onupdate="CASCADE", ondelete="CASCADE")


registered_models = Table(
    "registered_models",
    metadata,
    Column("name", _Name, primary_key=True),
    Column("description", Text),
    Column("created_at", Seconds, nullable=False),
    Column("updated_at", Seconds, nullable=False),
)

registered_model_tags = Table(
    "registered_model_tags",
    metadata,
    Column("name", _Name, _of_model(), primary_key=True),
    Column("key", String(250), primary_key=True),
    Column("value", Text, nullable=False),
    Index("ix_registered_model_tags_key", "key", "name"),
)

registered_model_aliases = Table(
    "registered_model_aliases",
    metadata,
    Column("name", _Name, _of_model(), primary_key=True),
    Column("alias", String(255), primary_key=True),
    Column("version", Integer, nullable=False),
)

model_versions = Table(
    "model_versions",
    metadata,
    Column("name", _Name, _of_model(), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("stage", String(20), nullable=False),
    Column("description", Text),
    Column("source", Text),
    Column("location", Text),  # where the files are, for sources that name another version or a logged model
    Column("run_id", String(256)),
    Column("run_link", Text),
    Column("model_id", String(64)),
    Column("created_at", Seconds, nullable=False),
    Column("updated_at", Seconds, nullable=False),
    Index("ix_model_versions_run", "run_id"),
    Index("ix_model_versions_model", "model_id"),
    Index("ix_model_versions_updated", "updated_at", "name", "version"),
)

model_version_tags = Table(
    "model_version_tags",
    metadata,
    Column("name", _Name, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("key", String(250), primary_key=True),
    Column("value", Text, nullable=False),
    ForeignKeyConstraint(
        ["name", "version"],
        ["model_versions.name", "model_versions.version"],
        onupdate="CASCADE",
        ondelete="CASCADE",
    ),
    Index("ix_model_version_tags_key", "key", "name", "version"),
)
