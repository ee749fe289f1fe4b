"""Tables of experiments, of runs as MLflow knows them, and of what belongs to both. Times are whole milliseconds since
the epoch, as MLflow's clients send and expect them. Metrics of all runs are in the tables of `tracking`.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, String, Table, Text, text

from windlass.db.metadata import RunId, metadata

# Compared and sorted byte by byte on both databases: a locale's order would put the same names elsewhere on each.
Words = Text().with_variant(Text(collation="C"), "postgresql")


def key_of(length: int) -> String:
    return String(length).with_variant(String(length, collation="C"), "postgresql")


# Written out, not as a value: an index of some rows is used where the query says the same as it does.
IS_GROUP = text("key = 'group'")
_Seq = BigInteger().with_variant(Integer, "sqlite")

experiments = Table(
    "experiments",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),  # 0 is "Default"
    Column("name", key_of(500), nullable=False),
    Column("artifact_location", Text, nullable=False),
    Column("stage", String(10), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Index("ix_experiments_name", "name", unique=True),
)

experiment_tags = Table(
    "experiment_tags",
    metadata,
    Column("experiment_id", Integer, primary_key=True, autoincrement=False),
    Column("key", key_of(250), primary_key=True),
    Column("value", Words, nullable=False),
    sqlite_with_rowid=False,
)

# Every Windlass run, and every run that an MLflow client has made. Only the first kind has a row in `runs`.
tracked_runs = Table(
    "tracked_runs",
    metadata,
    Column("id", RunId, primary_key=True),
    Column("experiment_id", Integer, nullable=False),
    Column("name", Words, nullable=False),
    Column("user", Words, nullable=False),
    Column("status", String(16), nullable=False),
    Column("start_ms", BigInteger),
    Column("end_ms", BigInteger),
    Column("stage", String(10), nullable=False),
    Column("deleted_ms", BigInteger),
    Column("artifact_uri", Text, nullable=False),
    Index("ix_tracked_runs_experiment", "experiment_id", "start_ms", "id"),
)

run_params = Table(
    "run_params",
    metadata,
    Column("run_id", RunId, primary_key=True),
    Column("key", key_of(250), primary_key=True),
    Column("value", Words, nullable=False),
    sqlite_with_rowid=False,
)

run_tags = Table(
    "run_tags",
    metadata,
    Column("run_id", RunId, primary_key=True),
    Column("key", key_of(250), primary_key=True),
    Column("value", Words, nullable=False),  # too long to be in an index
    Index("ix_run_tags_group", "run_id", sqlite_where=IS_GROUP, postgresql_where=IS_GROUP),
    sqlite_with_rowid=False,
)

# Data that runs of an experiment have read, as their clients describe it.
input_datasets = Table(
    "input_datasets",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("experiment_id", Integer, nullable=False),
    Column("name", key_of(500), nullable=False),
    Column("digest", key_of(36), nullable=False),
    Column("source_type", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("schema", Text),
    Column("profile", Text),
    Index("ix_input_datasets_named", "experiment_id", "name", "digest", unique=True),
)

run_inputs = Table(
    "run_inputs",
    metadata,
    Column("seq", _Seq, primary_key=True, autoincrement=True),
    Column("run_id", RunId, nullable=False),
    Column("dataset_id", String(32), nullable=False),
    Index("ix_run_inputs_run", "run_id", "dataset_id", unique=True),
    Index("ix_run_inputs_dataset", "dataset_id"),
)

input_tags = Table(
    "input_tags",
    metadata,
    Column("run_id", RunId, primary_key=True),
    Column("dataset_id", String(32), primary_key=True),
    Column("key", key_of(255), primary_key=True),
    Column("value", Words, nullable=False),
)

# Logged models that a run has read (`input`) or made (`output`).
run_models = Table(
    "run_models",
    metadata,
    Column("seq", _Seq, primary_key=True, autoincrement=True),
    Column("run_id", RunId, nullable=False),
    Column("direction", String(6), nullable=False),
    Column("model_id", String(36), nullable=False),
    Column("step", BigInteger, nullable=False),
    Index("ix_run_models_run", "run_id", "direction", "model_id", unique=True),
    Index("ix_run_models_model", "model_id"),
)

logged_models = Table(
    "logged_models",
    metadata,
    Column("id", key_of(36), primary_key=True),
    Column("experiment_id", Integer, nullable=False),
    Column("name", key_of(500), nullable=False),
    Column("artifact_location", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("status", Integer, nullable=False),
    Column("stage", String(10), nullable=False),
    Column("model_type", Words),
    Column("source_run_id", Words),
    Column("status_message", Text),
    Index("ix_logged_models_experiment", "experiment_id", "created_ms"),
    Index("ix_logged_models_source_run", "source_run_id"),
)

logged_model_params = Table(
    "logged_model_params",
    metadata,
    Column("model_id", key_of(36), primary_key=True),
    Column("key", key_of(250), primary_key=True),
    Column("value", Words, nullable=False),
)

logged_model_tags = Table(
    "logged_model_tags",
    metadata,
    Column("model_id", key_of(36), primary_key=True),
    Column("key", key_of(250), primary_key=True),
    Column("value", Words, nullable=False),
)

logged_model_metrics = Table(
    "logged_model_metrics",
    metadata,
    Column("model_id", key_of(36), primary_key=True),
    Column("name", key_of(250), primary_key=True),
    Column("at_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("run_id", RunId, primary_key=True),
    Column("value", Float(53)),  # null is NaN
    Column("dataset_name", key_of(500)),
    Column("dataset_digest", key_of(36)),
)
