"""Tables of data sets and their records, of scorers and their versions, of issues, of questions and their queues."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, String, Table, Text

from windlass.db.metadata import metadata
from windlass.experiments.tables import Words, key_of

_ID = String(36)


def _dataset_id(**options: Any) -> Column[Any]:
    return Column("dataset_id", _ID, ForeignKey("evaluation_datasets.id", ondelete="CASCADE"), **options)


datasets = Table(
    "evaluation_datasets",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("name", Words, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("schema", Text),  # JSON: fields of the records and their types
    Column("profile", Text),  # JSON: how many records there are
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("created_by", Words),
    Column("updated_by", Words),
    Index("ix_evaluation_datasets_created", "created_ms"),
)

dataset_tags = Table(
    "evaluation_dataset_tags",
    metadata,
    _dataset_id(primary_key=True),
    Column("key", key_of(250), primary_key=True),
    Column("value", Words, nullable=False),
)

dataset_experiments = Table(
    "evaluation_dataset_experiments",
    metadata,
    _dataset_id(primary_key=True),
    Column("experiment_id", key_of(250), primary_key=True),
    Index("ix_evaluation_dataset_experiments_of", "experiment_id"),
)

# Everything that people give is JSON. Two records of a data set differ in their inputs.
records = Table(
    "evaluation_records",
    metadata,
    Column("id", _ID, primary_key=True),
    _dataset_id(nullable=False),
    Column("input_hash", String(64), nullable=False),
    Column("inputs", Text, nullable=False),
    Column("outputs", Text),
    Column("expectations", Text),
    Column("tags", Text),
    Column("source", Text),
    Column("source_id", Text),
    Column("source_type", String(50)),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("created_by", Text),
    Column("updated_by", Text),
    Index("ix_evaluation_records_inputs", "dataset_id", "input_hash", unique=True),
    Index("ix_evaluation_records_order", "dataset_id", "created_ms", "id"),
)

scorers = Table(
    "scorers",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("experiment_id", Integer, nullable=False),
    Column("name", key_of(256), nullable=False),
    Index("ix_scorers_name", "experiment_id", "name", unique=True),
)

scorer_versions = Table(
    "scorer_versions",
    metadata,
    Column("scorer_id", _ID, ForeignKey("scorers.id", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("serialized", Text, nullable=False),  # JSON; a gateway's endpoint stands in it by its id
    Column("created_ms", BigInteger, nullable=False),
)

# How much of what comes in a scorer looks at by itself.
scoring = Table(
    "scorer_sampling",
    metadata,
    Column("scorer_id", _ID, ForeignKey("scorers.id", ondelete="CASCADE"), primary_key=True),
    Column("id", _ID, nullable=False),
    Column("experiment_id", Integer, nullable=False),
    Column("sample_rate", Float(53), nullable=False),
    Column("filter", Text),
)

issues = Table(
    "issues",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("experiment_id", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("status", Words, nullable=False),
    Column("severity", Words),
    Column("root_causes", Text),  # JSON lists
    Column("categories", Text),
    Column("source_run_id", Words),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("created_by", Text),
    Index("ix_issues_experiment", "experiment_id", "created_ms"),
)

label_schemas = Table(
    "label_schemas",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("experiment_id", Integer, nullable=False),
    Column("name", key_of(250), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("form", String(20), nullable=False),
    Column("limits", Text, nullable=False),  # JSON: what an answer of that form may be
    Column("instruction", Text),
    Column("comment", Boolean, nullable=False),
    Column("is_default", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Index("ix_label_schemas_name", "experiment_id", "name", unique=True),
)

review_queues = Table(
    "review_queues",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("experiment_id", Integer, nullable=False),
    Column("name", Words, nullable=False),
    Column("name_key", key_of(500), nullable=False),  # in small letters: names differ in more than that
    Column("kind", String(20), nullable=False),
    Column("created_by", Text),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Index("ix_review_queues_name", "experiment_id", "name_key", unique=True),
)


def _queue_id(**options: Any) -> Column[Any]:
    return Column("queue_id", _ID, ForeignKey("review_queues.id", ondelete="CASCADE"), **options)


review_users = Table(
    "review_queue_users",
    metadata,
    _queue_id(primary_key=True),
    Column("user_id", key_of(250), primary_key=True),
    Index("ix_review_queue_users_user", "user_id"),
)

# Schemas that are deleted stay in the queues that asked for them, as their answers do.
review_schemas = Table(
    "review_queue_schemas",
    metadata,
    _queue_id(primary_key=True),
    Column("schema_id", _ID, primary_key=True),
)

review_items = Table(
    "review_queue_items",
    metadata,
    _queue_id(primary_key=True),
    Column("trace_id", key_of(250), ForeignKey("traces.id", ondelete="CASCADE"), primary_key=True),
    Column("status", String(20), nullable=False),
    Column("completed_by", Text),
    Column("completed_ms", BigInteger),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Index("ix_review_queue_items_trace", "trace_id"),
)
