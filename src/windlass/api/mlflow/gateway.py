"""Calls of the gateway's book: secrets, models, endpoints. Values of secrets come in and never go out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from windlass.api.context import Services
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, Field, anything, items, number, read_fields, text, thing, whole, yes_or_no
from windlass.api.mlflow.traceforms import enum, texts_of
from windlass.core.errors import InvalidInput
from windlass.gateway.providers import known_providers, modes_of
from windlass.gateway.service import Choice, Fallback
from windlass.gateway.store import Endpoint, Mapped, Model, Secret

calls = Calls()

_LINKAGES = ("LINKAGE_TYPE_UNSPECIFIED", "PRIMARY", "FALLBACK")
_ROUTINGS = ("ROUTING_STRATEGY_UNSPECIFIED", "REQUEST_BASED_TRAFFIC_SPLIT")
_FALLBACKS = ("FALLBACK_STRATEGY_UNSPECIFIED", "SEQUENTIAL")
_SECRETS, _MODELS, _ENDPOINTS = (f"/mlflow/gateway/{room}" for room in ("secrets", "model-definitions", "endpoints"))


def _values() -> Field:
    """A map of texts that no error may show."""
    return Field(read=lambda value: value, empty=None, shown=False)


@calls.get(f"{_SECRETS}/config", 3)
def secrets_config(_services: Services, _asked: Asked) -> Mapping[str, Any]:
    """There is no passphrase that everybody knows: each server has a key of its own."""
    return {"secrets_available": True, "using_default_passphrase": False}


@calls.get("/mlflow/gateway/supported-providers", 3)
def list_providers(_services: Services, _asked: Asked) -> Mapping[str, Any]:
    return {"providers": known_providers()}


@calls.get("/mlflow/gateway/provider-config", 3, provider=text(required=True))
def provider_config(_services: Services, asked: Asked) -> Mapping[str, Any]:
    modes = modes_of(asked["provider"])
    return {"auth_modes": modes, "default_mode": modes[0]["mode"]}


@calls.post(
    f"{_SECRETS}/create",
    3,
    secret_name=text(required=True),
    secret_value=_values(),
    provider=text(),
    auth_config=thing(),
    created_by=text(),
)
def create_secret(services: Services, asked: Asked) -> Mapping[str, Any]:
    if asked["secret_value"] is None:
        raise InvalidInput("Missing value for required parameter 'secret_value'.")
    secret = services.gateway.create_secret(
        asked["secret_name"],
        _secret_values(asked["secret_value"]),
        provider=asked["provider"] or None,
        auth_config=texts_of("auth_config", asked["auth_config"]),
        user=asked["created_by"] or None,
    )
    return {"secret": _secret(secret)}


@calls.get(f"{_SECRETS}/get", 3, secret_id=text(), secret_name=text())
def get_secret(services: Services, asked: Asked) -> Mapping[str, Any]:
    found = services.gateway.get_secret(id=asked["secret_id"] or None, name=asked["secret_name"] or None)
    return {"secret": _secret(found)}


@calls.post(
    f"{_SECRETS}/update",
    3,
    secret_id=text(required=True),
    secret_value=_values(),
    auth_config=thing(),
    updated_by=text(),
)
def update_secret(services: Services, asked: Asked) -> Mapping[str, Any]:
    secret = services.gateway.update_secret(
        asked["secret_id"],
        values=_secret_values(asked["secret_value"] or {}),
        auth_config=texts_of("auth_config", asked["auth_config"]),
        user=asked["updated_by"] or None,
    )
    return {"secret": _secret(secret)}


@calls.delete(f"{_SECRETS}/delete", 3, secret_id=text(required=True))
def delete_secret(services: Services, asked: Asked) -> None:
    services.gateway.delete_secret(asked["secret_id"])


@calls.get(f"{_SECRETS}/list", 3, provider=text())
def list_secrets(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"secrets": [_secret(one) for one in services.gateway.list_secrets(asked["provider"] or None)]}


@calls.post(
    f"{_MODELS}/create",
    3,
    name=text(required=True),
    secret_id=text(required=True),
    provider=text(required=True),
    model_name=text(required=True),
    created_by=text(),
)
def create_model(services: Services, asked: Asked) -> Mapping[str, Any]:
    model = services.gateway.create_model(
        asked["name"],
        secret_id=asked["secret_id"],
        provider=asked["provider"],
        model_name=asked["model_name"],
        user=asked["created_by"] or None,
    )
    return {"model_definition": _model(model)}


@calls.get(f"{_MODELS}/get", 3, model_definition_id=text(required=True))
def get_model(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"model_definition": _model(services.gateway.get_model(asked["model_definition_id"]))}


@calls.get(f"{_MODELS}/list", 3, provider=text(), secret_id=text())
def list_models(services: Services, asked: Asked) -> Mapping[str, Any]:
    found = services.gateway.list_models(provider=asked["provider"] or None, secret_id=asked["secret_id"] or None)
    return {"model_definitions": [_model(one) for one in found]}


@calls.post(
    f"{_MODELS}/update",
    3,
    model_definition_id=text(required=True),
    name=text(),
    secret_id=text(),
    model_name=text(),
    provider=text(),
    updated_by=text(),
)
def update_model(services: Services, asked: Asked) -> Mapping[str, Any]:
    given = {name: asked[name] or None for name in ("name", "secret_id", "model_name", "provider")}
    model = services.gateway.update_model(asked["model_definition_id"], **given, user=asked["updated_by"] or None)
    return {"model_definition": _model(model)}


@calls.delete(f"{_MODELS}/delete", 3, model_definition_id=text(required=True))
def delete_model(services: Services, asked: Asked) -> None:
    services.gateway.delete_model(asked["model_definition_id"])


@calls.post(
    f"{_ENDPOINTS}/create",
    3,
    name=text(required=True),
    model_configs=items(required=True),
    created_by=text(),
    routing_strategy=anything(),
    fallback_config=thing(),
    experiment_id=text(),
    usage_tracking=yes_or_no(),
)
def create_endpoint(services: Services, asked: Asked) -> Mapping[str, Any]:
    endpoint = services.gateway.create_endpoint(
        asked["name"],
        [_choice(one) for one in asked["model_configs"]],
        routing=_routing(asked["routing_strategy"]),
        fallback=_read_fallback(asked["fallback_config"]),
        experiment_id=asked.or_none("experiment_id"),
        usage_tracking=asked["usage_tracking"] if "usage_tracking" in asked.given else True,
        user=asked["created_by"] or None,
    )
    return {"endpoint": _endpoint(endpoint)}


@calls.get(f"{_ENDPOINTS}/get", 3, endpoint_id=text(), name=text())
def get_endpoint(services: Services, asked: Asked) -> Mapping[str, Any]:
    found = services.gateway.get_endpoint(id=asked["endpoint_id"] or None, name=asked["name"] or None)
    return {"endpoint": _endpoint(found)}


@calls.post(
    f"{_ENDPOINTS}/update",
    3,
    endpoint_id=text(required=True),
    name=text(),
    updated_by=text(),
    model_configs=items(),
    routing_strategy=anything(),
    fallback_config=thing(),
    experiment_id=text(),
    usage_tracking=yes_or_no(),
)
def update_endpoint(services: Services, asked: Asked) -> Mapping[str, Any]:
    endpoint = services.gateway.update_endpoint(
        asked["endpoint_id"],
        name=asked["name"] or None,
        choices=[_choice(one) for one in asked["model_configs"]],
        routing=_routing(asked["routing_strategy"]),
        fallback=_read_fallback(asked["fallback_config"]),
        experiment_id=asked.or_none("experiment_id"),
        usage_tracking=asked.or_none("usage_tracking"),
        user=asked["updated_by"] or None,
    )
    return {"endpoint": _endpoint(endpoint)}


@calls.delete(f"{_ENDPOINTS}/delete", 3, endpoint_id=text(required=True))
def delete_endpoint(services: Services, asked: Asked) -> None:
    services.gateway.delete_endpoint(asked["endpoint_id"])


@calls.get(f"{_ENDPOINTS}/list", 3, provider=text(), secret_id=text())
def list_endpoints(services: Services, asked: Asked) -> Mapping[str, Any]:
    found = services.gateway.list_endpoints(provider=asked["provider"] or None, secret_id=asked["secret_id"] or None)
    return {"endpoints": [_endpoint(one) for one in found]}


@calls.post(
    f"{_ENDPOINTS}/models/attach",
    3,
    endpoint_id=text(required=True),
    model_config=thing(required=True),
    created_by=text(),
)
def attach(services: Services, asked: Asked) -> Mapping[str, Any]:
    user = asked["created_by"] or None
    return {
        "mapping": _mapped(services.gateway.attach(asked["endpoint_id"], _choice(asked["model_config"]), user=user))
    }


@calls.post(f"{_ENDPOINTS}/models/detach", 3, endpoint_id=text(required=True), model_definition_id=text(required=True))
def detach(services: Services, asked: Asked) -> None:
    services.gateway.detach(asked["endpoint_id"], asked["model_definition_id"])


_BOUND = {name: text(required=True) for name in ("endpoint_id", "resource_type", "resource_id")}


@calls.post(f"{_ENDPOINTS}/bindings/create", 3, **_BOUND, created_by=text())
def bind(services: Services, asked: Asked) -> Mapping[str, Any]:
    named = [asked[name] for name in _BOUND]
    return {"binding": _binding(services.gateway.bind(*named, user=asked["created_by"] or None))}


@calls.delete(f"{_ENDPOINTS}/bindings/delete", 3, **_BOUND)
def unbind(services: Services, asked: Asked) -> None:
    services.gateway.unbind(*(asked[name] for name in _BOUND))


@calls.get(f"{_ENDPOINTS}/bindings/list", 3, endpoint_id=text(), resource_type=text(), resource_id=text())
def list_bindings(services: Services, asked: Asked) -> Mapping[str, Any]:
    found = services.gateway.list_bindings(**{name: asked[name] or None for name in _BOUND})
    return {"bindings": [_binding(one) for one in found]}


@calls.post(f"{_ENDPOINTS}/set-tag", 3, endpoint_id=text(required=True), key=text(required=True), value=text())
def set_tag(services: Services, asked: Asked) -> None:
    services.gateway.set_tag(asked["endpoint_id"], asked["key"], asked["value"])


@calls.delete(f"{_ENDPOINTS}/delete-tag", 3, endpoint_id=text(required=True), key=text(required=True))
def delete_tag(services: Services, asked: Asked) -> None:
    services.gateway.delete_tag(asked["endpoint_id"], asked["key"])


def _secret_values(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping) or not all(isinstance(value, str) for value in given.values()):
        raise InvalidInput("Invalid value for parameter 'secret_value': it takes a map of texts")
    return dict(given)


def _choice(given: Any) -> Choice:
    fields = {
        "model_definition_id": text(required=True),
        "linkage_type": anything(),
        "weight": number(),
        "fallback_order": whole(),
    }
    asked = read_fields(fields, given)
    linkage = enum("linkage_type", asked["linkage_type"] or 1, _LINKAGES)
    return Choice(
        model_id=asked["model_definition_id"],
        linkage=_LINKAGES[1] if linkage == _LINKAGES[0] else linkage,
        weight=asked["weight"] if "weight" in asked.given else 1.0,
        fallback_order=asked.or_none("fallback_order"),
    )


def _routing(given: Any) -> str | None:
    found = enum("routing_strategy", given, _ROUTINGS) if given is not None else _ROUTINGS[0]
    return None if found == _ROUTINGS[0] else found


def _read_fallback(given: Mapping[str, Any] | None) -> Fallback | None:
    if given is None:
        return None
    asked = read_fields({"strategy": anything(), "max_attempts": whole()}, given)
    strategy = enum("strategy", asked["strategy"], _FALLBACKS) if asked["strategy"] is not None else _FALLBACKS[0]
    return Fallback(
        strategy=None if strategy == _FALLBACKS[0] else strategy, max_attempts=asked.or_none("max_attempts")
    )


def _shown(always: Mapping[str, Any], maybe: Mapping[str, Any]) -> dict[str, Any]:
    return {**always, **{name: value for name, value in maybe.items() if value is not None}}


def _secret(one: Secret) -> dict[str, Any]:
    return _shown(
        {
            "secret_id": one.id,
            "secret_name": one.name,
            "masked_values": dict(one.masked),
            "created_at": one.created_ms,
            "last_updated_at": one.updated_ms,
        },
        {
            "provider": one.provider,
            "created_by": one.created_by,
            "last_updated_by": one.updated_by,
            "auth_config": dict(one.auth_config) or None,
        },
    )


def _model(one: Model) -> dict[str, Any]:
    return _shown(
        {
            "model_definition_id": one.id,
            "name": one.name,
            "provider": one.provider,
            "model_name": one.model_name,
            "created_at": one.created_ms,
            "last_updated_at": one.updated_ms,
        },
        {
            "secret_id": one.secret_id,
            "secret_name": one.secret_name,
            "created_by": one.created_by,
            "last_updated_by": one.updated_by,
        },
    )


def _mapped(one: Mapped) -> dict[str, Any]:
    return _shown(
        {
            "mapping_id": one.id,
            "endpoint_id": one.endpoint_id,
            "model_definition_id": one.model.id,
            "model_definition": _model(one.model),
            "weight": one.weight,
            "linkage_type": one.linkage,
            "created_at": one.created_ms,
        },
        {"fallback_order": one.fallback_order, "created_by": one.created_by},
    )


def _endpoint(one: Endpoint) -> dict[str, Any]:
    fallback = (
        _shown({}, {name: one.fallback.get(name) for name in ("strategy", "max_attempts")}) if one.fallback else None
    )
    return _shown(
        {
            "endpoint_id": one.id,
            "name": one.name,
            "created_at": one.created_ms,
            "last_updated_at": one.updated_ms,
            "model_mappings": [_mapped(mapped) for mapped in one.mapped],
            "tags": [{"key": key, "value": value} for key, value in one.tags.items()],
            "usage_tracking": one.usage_tracking,
        },
        {
            "created_by": one.created_by,
            "last_updated_by": one.updated_by,
            "routing_strategy": one.routing,
            "fallback_config": fallback,
            "experiment_id": str(one.experiment_id) if one.experiment_id is not None else None,
        },
    )


def _binding(row: Row[Any]) -> dict[str, Any]:
    return _shown(
        {
            "endpoint_id": row.endpoint_id,
            "resource_type": row.resource_type,
            "resource_id": row.resource_id,
            "created_at": row.created_ms,
            "last_updated_at": row.updated_ms,
        },
        {"created_by": row.created_by, "last_updated_by": row.updated_by, "display_name": row.display_name},
    )
