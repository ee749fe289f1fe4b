"""Tables of the gateway: keys of providers (sealed), models, endpoints, which models an endpoint has, who uses it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, LargeBinary, String, Table, Text

from windlass.db.metadata import metadata
from windlass.experiments.tables import Words, key_of

_ID = String(36)


def _history() -> list[Column[Any]]:
    return [
        Column("created_ms", BigInteger, nullable=False),
        Column("updated_ms", BigInteger, nullable=False),
        Column("created_by", Text),
        Column("updated_by", Text),
    ]


def _endpoint_id(**options: Any) -> Column[Any]:
    return Column("endpoint_id", _ID, ForeignKey("gateway_endpoints.id", ondelete="CASCADE"), **options)


secrets = Table(
    "gateway_secrets",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("name", key_of(255), nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("masked", Text, nullable=False),  # JSON: what may be shown of each value
    Column("provider", Words),
    Column("auth_config", Text),  # JSON
    *_history(),
    Index("ix_gateway_secrets_name", "name", unique=True),
)

models = Table(
    "gateway_models",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("name", key_of(255), nullable=False),
    Column("secret_id", _ID, ForeignKey("gateway_secrets.id", ondelete="SET NULL")),
    Column("provider", Words, nullable=False),
    Column("model_name", Words, nullable=False),
    *_history(),
    Index("ix_gateway_models_name", "name", unique=True),
)

endpoints = Table(
    "gateway_endpoints",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("name", key_of(255), nullable=False),
    Column("routing", String(64)),
    Column("fallback", Text),  # JSON
    Column("experiment_id", Integer),
    Column("usage_tracking", Boolean, nullable=False),
    *_history(),
    Index("ix_gateway_endpoints_name", "name", unique=True),
)

mappings = Table(
    "gateway_mappings",
    metadata,
    Column("id", _ID, primary_key=True),
    _endpoint_id(nullable=False),
    Column("model_id", _ID, ForeignKey("gateway_models.id"), nullable=False),
    Column("weight", Float(53), nullable=False),
    Column("linkage", String(64), nullable=False),
    Column("fallback_order", Integer),
    Column("created_ms", BigInteger, nullable=False),
    Column("created_by", Text),
    Index("ix_gateway_mappings_endpoint", "endpoint_id", "model_id", "linkage", unique=True),
    Index("ix_gateway_mappings_model", "model_id"),
)

bindings = Table(
    "gateway_bindings",
    metadata,
    _endpoint_id(primary_key=True),
    Column("resource_type", key_of(50), primary_key=True),
    Column("resource_id", key_of(255), primary_key=True),
    Column("display_name", Text),
    *_history(),
)

endpoint_tags = Table(
    "gateway_endpoint_tags",
    metadata,
    _endpoint_id(primary_key=True),
    Column("key", key_of(250), primary_key=True),
    Column("value", Words),
)
