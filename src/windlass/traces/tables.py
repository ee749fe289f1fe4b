"""Tables of traces: what lists and searches need in columns; tags, metadata and assessments beside; each span with the
JSON that is kept of it, in text, since searches look into it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, String, Table, Text, true

from windlass.db.metadata import metadata
from windlass.experiments.tables import Words, key_of

_ID = key_of(250)


def _trace_id(**options: Any) -> Column[Any]:
    return Column("trace_id", _ID, ForeignKey("traces.id", ondelete="CASCADE"), **options)


traces = Table(
    "traces",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("experiment_id", BigInteger, nullable=False),
    Column("request_ms", BigInteger, nullable=False),
    Column("duration_ms", BigInteger),
    Column("state", String(50), nullable=False),
    Column("client_request_id", Words),
    Column("request_preview", Text),
    Column("response_preview", Text),
    # What metadata says of tokens, as numbers.
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("total_tokens", BigInteger),
    Column("cache_read_input_tokens", BigInteger),
    Column("cache_creation_input_tokens", BigInteger),
    Index("ix_traces_experiment", "experiment_id", "request_ms", "id"),
)

tags = Table(
    "trace_tags",
    metadata,
    _trace_id(primary_key=True),
    Column("key", key_of(250), primary_key=True),
    Column("value", Words, nullable=False),
)

notes = Table(
    "trace_metadata",
    metadata,
    _trace_id(primary_key=True),
    Column("key", key_of(250), primary_key=True),
    Column("value", Words, nullable=False),
)

spans = Table(
    "trace_spans",
    metadata,
    _trace_id(primary_key=True),
    Column("id", String(50), primary_key=True),
    Column("parent_id", String(50)),
    Column("name", Words),
    Column("type", Words),
    Column("status", String(50), nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger),
    Column("content", Text, nullable=False),
    Column("input_cost", Float(53)),
    Column("output_cost", Float(53)),
    Column("total_cost", Float(53)),
    Column("model_name", Words),
    Column("model_provider", Words),
)

assessments = Table(
    "trace_assessments",
    metadata,
    Column("id", String(50), primary_key=True),
    _trace_id(nullable=False),
    Column("name", key_of(250), nullable=False),
    Column("kind", String(20), nullable=False),  # feedback, expectation or issue
    Column("value", Words, nullable=False),  # JSON
    Column("number", Float(53)),  # the value as metrics and comparisons have it; yes, no and booleans are 1 and 0
    Column("is_number", Boolean, nullable=False),  # the value itself is a number
    Column("error", Text),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("source_type", String(50), nullable=False),
    Column("source_id", Text),
    Column("run_id", Text),
    Column("span_id", String(50)),
    Column("rationale", Text),
    Column("overrides", String(50)),
    Column("valid", Boolean, nullable=False, server_default=true()),
    Column("metadata", Text),
    Index("ix_trace_assessments_trace", "trace_id", "created_ms"),
    Index("ix_trace_assessments_name", "kind", "name"),
)

# Runs and versions of prompts that a trace belongs to besides where it came from. A link may come before its trace.
links = Table(
    "trace_links",
    metadata,
    Column("trace_id", _ID, primary_key=True),
    Column("kind", String(20), primary_key=True),  # run or prompt
    Column("target", key_of(500), primary_key=True),
    Index("ix_trace_links_target", "kind", "target"),
)
