"""Traces, spans, assessments; data sets, scorers and issues of evaluations; the gateway."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_Words = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _key(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    _create_traces_0()
    _create_traces_1()
    _create_evaluation_0()
    _create_evaluation_1()
    _create_gateway_0()
    _create_gateway_1()


def _create_traces_0() -> None:
    op.create_table(
        "traces",
        sa.Column("id", _key(250), primary_key=True),
        sa.Column("experiment_id", sa.BigInteger, nullable=False),
        sa.Column("request_ms", sa.BigInteger, nullable=False),
        sa.Column("duration_ms", sa.BigInteger),
        sa.Column("state", sa.String(50), nullable=False),
        sa.Column("client_request_id", _Words),
        sa.Column("request_preview", sa.Text),
        sa.Column("response_preview", sa.Text),
        sa.Column("input_tokens", sa.BigInteger),
        sa.Column("output_tokens", sa.BigInteger),
        sa.Column("total_tokens", sa.BigInteger),
        sa.Column("cache_read_input_tokens", sa.BigInteger),
        sa.Column("cache_creation_input_tokens", sa.BigInteger),
    )
    op.create_index("ix_traces_experiment", "traces", ["experiment_id", "request_ms", "id"])
    op.create_table(
        "trace_tags",
        sa.Column("trace_id", _key(250), sa.ForeignKey("traces.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("key", _key(250), primary_key=True),
        sa.Column("value", _Words, nullable=False),
    )
    op.create_table(
        "trace_metadata",
        sa.Column("trace_id", _key(250), sa.ForeignKey("traces.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("key", _key(250), primary_key=True),
        sa.Column("value", _Words, nullable=False),
    )
    op.create_table(
        "trace_spans",
        sa.Column("trace_id", _key(250), sa.ForeignKey("traces.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("id", sa.String(50), primary_key=True),
        sa.Column("parent_id", sa.String(50)),
        sa.Column("name", _Words),
        sa.Column("type", _Words),
        sa.Column("status", sa.String(50), nullable=False),
        sa.Column("start_ns", sa.BigInteger, nullable=False),
        sa.Column("end_ns", sa.BigInteger),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("input_cost", sa.Float(53)),
        sa.Column("output_cost", sa.Float(53)),
        sa.Column("total_cost", sa.Float(53)),
        sa.Column("model_name", _Words),
        sa.Column("model_provider", _Words),
    )


def _create_traces_1() -> None:
    op.create_table(
        "trace_assessments",
        sa.Column("id", sa.String(50), primary_key=True),
        sa.Column("trace_id", _key(250), sa.ForeignKey("traces.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", _key(250), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("value", _Words, nullable=False),
        sa.Column("number", sa.Float(53)),
        sa.Column("is_number", sa.Boolean, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("source_type", sa.String(50), nullable=False),
        sa.Column("source_id", sa.Text),
        sa.Column("run_id", sa.Text),
        sa.Column("span_id", sa.String(50)),
        sa.Column("rationale", sa.Text),
        sa.Column("overrides", sa.String(50)),
        sa.Column("valid", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("metadata", sa.Text),
    )
    op.create_index("ix_trace_assessments_name", "trace_assessments", ["kind", "name"])
    op.create_index("ix_trace_assessments_trace", "trace_assessments", ["trace_id", "created_ms"])
    op.create_table(
        "trace_links",
        sa.Column("trace_id", _key(250), primary_key=True),
        sa.Column("kind", sa.String(20), primary_key=True),
        sa.Column("target", _key(500), primary_key=True),
    )
    op.create_index("ix_trace_links_target", "trace_links", ["kind", "target"])


def _create_evaluation_0() -> None:
    op.create_table(
        "evaluation_datasets",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("name", _Words, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("schema", sa.Text),
        sa.Column("profile", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", _Words),
        sa.Column("updated_by", _Words),
    )
    op.create_index("ix_evaluation_datasets_created", "evaluation_datasets", ["created_ms"])
    op.create_table(
        "evaluation_dataset_tags",
        sa.Column(
            "dataset_id", sa.String(36), sa.ForeignKey("evaluation_datasets.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("key", _key(250), primary_key=True),
        sa.Column("value", _Words, nullable=False),
    )
    op.create_table(
        "evaluation_dataset_experiments",
        sa.Column(
            "dataset_id", sa.String(36), sa.ForeignKey("evaluation_datasets.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("experiment_id", _key(250), primary_key=True),
    )
    op.create_index("ix_evaluation_dataset_experiments_of", "evaluation_dataset_experiments", ["experiment_id"])
    op.create_table(
        "evaluation_records",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column(
            "dataset_id", sa.String(36), sa.ForeignKey("evaluation_datasets.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("input_hash", sa.String(64), nullable=False),
        sa.Column("inputs", sa.Text, nullable=False),
        sa.Column("outputs", sa.Text),
        sa.Column("expectations", sa.Text),
        sa.Column("tags", sa.Text),
        sa.Column("source", sa.Text),
        sa.Column("source_id", sa.Text),
        sa.Column("source_type", sa.String(50)),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text),
        sa.Column("updated_by", sa.Text),
    )
    op.create_index("ix_evaluation_records_inputs", "evaluation_records", ["dataset_id", "input_hash"], unique=True)
    op.create_index("ix_evaluation_records_order", "evaluation_records", ["dataset_id", "created_ms", "id"])


def _create_evaluation_1() -> None:
    op.create_table(
        "scorers",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("name", _key(256), nullable=False),
    )
    op.create_index("ix_scorers_name", "scorers", ["experiment_id", "name"], unique=True)
    op.create_table(
        "scorer_versions",
        sa.Column("scorer_id", sa.String(36), sa.ForeignKey("scorers.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("serialized", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "scorer_sampling",
        sa.Column("scorer_id", sa.String(36), sa.ForeignKey("scorers.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("sample_rate", sa.Float(53), nullable=False),
        sa.Column("filter", sa.Text),
    )
    op.create_table(
        "issues",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("status", _Words, nullable=False),
        sa.Column("severity", _Words),
        sa.Column("root_causes", sa.Text),
        sa.Column("categories", sa.Text),
        sa.Column("source_run_id", _Words),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text),
    )
    op.create_index("ix_issues_experiment", "issues", ["experiment_id", "created_ms"])


def _create_gateway_0() -> None:
    op.create_table(
        "gateway_secrets",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("name", _key(255), nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("masked", sa.Text, nullable=False),
        sa.Column("provider", _Words),
        sa.Column("auth_config", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text),
        sa.Column("updated_by", sa.Text),
    )
    op.create_index("ix_gateway_secrets_name", "gateway_secrets", ["name"], unique=True)
    op.create_table(
        "gateway_models",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("name", _key(255), nullable=False),
        sa.Column("secret_id", sa.String(36), sa.ForeignKey("gateway_secrets.id", ondelete="SET NULL")),
        sa.Column("provider", _Words, nullable=False),
        sa.Column("model_name", _Words, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text),
        sa.Column("updated_by", sa.Text),
    )
    op.create_index("ix_gateway_models_name", "gateway_models", ["name"], unique=True)
    op.create_table(
        "gateway_endpoints",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("name", _key(255), nullable=False),
        sa.Column("routing", sa.String(64)),
        sa.Column("fallback", sa.Text),
        sa.Column("experiment_id", sa.Integer),
        sa.Column("usage_tracking", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text),
        sa.Column("updated_by", sa.Text),
    )
    op.create_index("ix_gateway_endpoints_name", "gateway_endpoints", ["name"], unique=True)


def _create_gateway_1() -> None:
    op.create_table(
        "gateway_mappings",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column(
            "endpoint_id", sa.String(36), sa.ForeignKey("gateway_endpoints.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("model_id", sa.String(36), sa.ForeignKey("gateway_models.id"), nullable=False),
        sa.Column("weight", sa.Float(53), nullable=False),
        sa.Column("linkage", sa.String(64), nullable=False),
        sa.Column("fallback_order", sa.Integer),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text),
    )
    op.create_index(
        "ix_gateway_mappings_endpoint", "gateway_mappings", ["endpoint_id", "model_id", "linkage"], unique=True
    )
    op.create_index("ix_gateway_mappings_model", "gateway_mappings", ["model_id"])
    op.create_table(
        "gateway_bindings",
        sa.Column(
            "endpoint_id", sa.String(36), sa.ForeignKey("gateway_endpoints.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("resource_type", _key(50), primary_key=True),
        sa.Column("resource_id", _key(255), primary_key=True),
        sa.Column("display_name", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text),
        sa.Column("updated_by", sa.Text),
    )
    op.create_table(
        "gateway_endpoint_tags",
        sa.Column(
            "endpoint_id", sa.String(36), sa.ForeignKey("gateway_endpoints.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("key", _key(250), primary_key=True),
        sa.Column("value", _Words),
    )
