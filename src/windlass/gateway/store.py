"""Queries of the gateway's book, each over an open transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from windlass.core.errors import AlreadyExists, InvalidInput, NotFound
from windlass.gateway.tables import bindings, endpoint_tags, endpoints, mappings, models, secrets

_TITLES = {
    "gateway_secrets": ("GatewaySecret", "secret_id", "secret_name"),
    "gateway_models": ("GatewayModelDefinition", "model_definition_id", "name"),
    "gateway_endpoints": ("GatewayEndpoint", "endpoint_id", "name"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """What may be known of a secret."""

    id: str
    name: str
    masked: Mapping[str, str]
    provider: str | None
    auth_config: Mapping[str, str]
    created_ms: int
    updated_ms: int
    created_by: str | None
    updated_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    id: str
    name: str
    secret_id: str | None
    secret_name: str | None
    provider: str
    model_name: str
    created_ms: int
    updated_ms: int
    created_by: str | None
    updated_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """A model that an endpoint has."""

    id: str
    endpoint_id: str
    model: Model
    weight: float
    linkage: str
    fallback_order: int | None
    created_ms: int
    created_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    id: str
    name: str
    mapped: Sequence[Mapped]
    tags: Mapping[str, str]
    routing: str | None
    fallback: Mapping[str, Any] | None
    experiment_id: int | None
    usage_tracking: bool
    created_ms: int
    updated_ms: int
    created_by: str | None
    updated_by: str | None


def load_one(tx: Connection, table: Table, *, id: str | None = None, name: str | None = None) -> Row[Any]:
    """By one of both. Raises InvalidInput and NotFound."""
    title, id_name, name_name = _TITLES[table.name]
    if (id is None) == (name is None):
        raise InvalidInput(f"Exactly one of {id_name} or {name_name} must be provided")
    row = tx.execute(select(table).where(table.c.id == id if id is not None else table.c.name == name)).one_or_none()
    if row is None:
        told = f"{id_name}='{id}'" if id is not None else f"{name_name}='{name}'"
        raise NotFound(f"{title} not found ({told})")
    return row


def add(tx: Connection, table: Table, row: Mapping[str, Any], taken: str) -> None:
    """`taken` says that its name is in use."""
    try:
        with tx.begin_nested():
            tx.execute(insert(table).values(**row))
    except IntegrityError as error:
        raise AlreadyExists(taken) from error


def change(tx: Connection, table: Table, id: str, changes: Mapping[str, Any], taken: str) -> None:
    try:
        with tx.begin_nested():
            tx.execute(update(table).where(table.c.id == id).values(**changes))
    except IntegrityError as error:
        raise AlreadyExists(taken) from error


def remove(tx: Connection, table: Table, id: str) -> None:
    load_one(tx, table, id=id)
    tx.execute(delete(table).where(table.c.id == id))


def secret_of(row: Row[Any]) -> Secret:
    found = {name: value for name, value in row._mapping.items() if name != "sealed"}
    masked, config = json.loads(row.masked), json.loads(row.auth_config) if row.auth_config else {}
    return Secret(**{**found, "masked": masked, "auth_config": config})


def load_secrets(tx: Connection, provider: str | None) -> list[Secret]:
    query = select(secrets).order_by(secrets.c.created_ms, secrets.c.id)
    rows = tx.execute(query.where(secrets.c.provider == provider) if provider is not None else query)
    return [secret_of(row) for row in rows]


def load_models(
    tx: Connection, *, ids: Sequence[str] | None = None, provider: str | None = None, secret_id: str | None = None
) -> list[Model]:
    joined = models.outerjoin(secrets, secrets.c.id == models.c.secret_id)
    query = select(models, secrets.c.name.label("secret_name")).select_from(joined)
    if ids is not None:
        query = query.where(models.c.id.in_(ids))
    if provider is not None:
        query = query.where(models.c.provider == provider)
    if secret_id is not None:
        query = query.where(models.c.secret_id == secret_id)
    return [Model(**row._mapping) for row in tx.execute(query.order_by(models.c.created_ms, models.c.id))]


def load_model(tx: Connection, id: str) -> Model:
    load_one(tx, models, id=id)
    [model] = load_models(tx, ids=[id])
    return model


def load_endpoints(tx: Connection, rows: Sequence[Row[Any]]) -> list[Endpoint]:
    ids = [row.id for row in rows]
    listed = tx.execute(
        select(mappings).where(mappings.c.endpoint_id.in_(ids)).order_by(mappings.c.created_ms, mappings.c.id)
    ).all()
    known = {model.id: model for model in load_models(tx, ids=[row.model_id for row in listed])}
    tags: dict[str, dict[str, str]] = {}
    for endpoint_id, key, value in tx.execute(select(endpoint_tags).where(endpoint_tags.c.endpoint_id.in_(ids))):
        tags.setdefault(endpoint_id, {})[key] = value
    return [
        Endpoint(
            **{
                **row._mapping,
                "mapped": [_mapped(one, known[one.model_id]) for one in listed if one.endpoint_id == row.id],
                "tags": tags.get(row.id, {}),
                "fallback": json.loads(row.fallback) if row.fallback else None,
            }
        )
        for row in rows
    ]


def load_endpoint(tx: Connection, *, id: str | None = None, name: str | None = None) -> Endpoint:
    [endpoint] = load_endpoints(tx, [load_one(tx, endpoints, id=id, name=name)])
    return endpoint


def load_mapping(tx: Connection, id: str) -> Mapped:
    row = tx.execute(select(mappings).where(mappings.c.id == id)).one()
    return _mapped(row, load_model(tx, row.model_id))


def _mapped(row: Row[Any], model: Model) -> Mapped:
    found = {name: value for name, value in row._mapping.items() if name != "model_id"}
    return Mapped(**found, model=model)


def bind(tx: Connection, row: Mapping[str, Any]) -> None:
    tx.execute(insert(bindings).values(**row))


def unbind(tx: Connection, *, resource_type: str, resource_id: str) -> None:
    of_both = (bindings.c.resource_type == resource_type, bindings.c.resource_id == resource_id)
    tx.execute(delete(bindings).where(*of_both))
