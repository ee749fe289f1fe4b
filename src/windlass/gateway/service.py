"""What can be done with the gateway's book; one transaction each. Values of secrets are sealed before they are kept,
and nothing here shows them again."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, exists, select

from windlass.core.clock import Clock
from windlass.core.errors import InvalidInput, InvalidTransition, NotFound
from windlass.db.database import Database
from windlass.db.insertion import insert_or_replace
from windlass.experiments.catalogue import put_experiment
from windlass.experiments.rules import experiment_number
from windlass.experiments.tables import experiments
from windlass.experiments.types import Pair
from windlass.gateway import store
from windlass.gateway.store import Endpoint, Mapped, Model, Secret
from windlass.gateway.tables import bindings, endpoint_tags, endpoints, mappings, models, secrets
from windlass.runs.sealing import Seal

_NAME = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A model that an endpoint is to have."""

    model_id: str
    linkage: str = "PRIMARY"
    weight: float = 1.0
    fallback_order: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    strategy: str | None
    max_attempts: int | None


class GatewayService:
    def __init__(self, *, db: Database, clock: Clock, seal: Seal) -> None:
        self._db = db
        self._clock = clock
        self._seal = seal

    # Secrets

    def create_secret(
        self,
        name: str,
        values: Mapping[str, str],
        *,
        provider: str | None,
        auth_config: Mapping[str, str],
        user: str | None,
    ) -> Secret:
        row = {
            "id": f"s-{uuid.uuid4().hex}",
            "name": name,
            **self._sealed(values),
            "provider": provider,
            "auth_config": json.dumps(dict(auth_config)) if auth_config else None,
            **self._fresh(user),
        }
        with self._db.write() as tx:
            store.add(tx, secrets, row, f"Secret with name '{name}' already exists")
            return store.secret_of(store.load_one(tx, secrets, id=row["id"]))

    def get_secret(self, *, id: str | None = None, name: str | None = None) -> Secret:
        with self._db.read() as tx:
            return store.secret_of(store.load_one(tx, secrets, id=id, name=name))

    def update_secret(
        self, id: str, *, values: Mapping[str, str], auth_config: Mapping[str, str], user: str | None
    ) -> Secret:
        """What is empty stays as it is."""
        changes: dict[str, Any] = {"updated_by": user, "updated_ms": self._now()}
        if values:
            changes |= self._sealed(values)
        if auth_config:
            changes["auth_config"] = json.dumps(dict(auth_config))
        with self._db.write() as tx:
            store.load_one(tx, secrets, id=id)
            store.change(tx, secrets, id, changes, "")
            return store.secret_of(store.load_one(tx, secrets, id=id))

    def delete_secret(self, id: str) -> None:
        with self._db.write() as tx:
            store.remove(tx, secrets, id)

    def list_secrets(self, provider: str | None) -> list[Secret]:
        with self._db.read() as tx:
            return store.load_secrets(tx, provider)

    # Models

    def create_model(self, name: str, *, secret_id: str, provider: str, model_name: str, user: str | None) -> Model:
        row = {
            "id": f"d-{uuid.uuid4().hex}",
            "name": name,
            "secret_id": secret_id,
            "provider": provider,
            "model_name": model_name,
            **self._fresh(user),
        }
        with self._db.write() as tx:
            store.load_one(tx, secrets, id=secret_id)
            store.add(tx, models, row, f"Model definition with name '{name}' already exists")
            return store.load_model(tx, row["id"])

    def get_model(self, id: str) -> Model:
        with self._db.read() as tx:
            return store.load_model(tx, id)

    def list_models(self, *, provider: str | None, secret_id: str | None) -> list[Model]:
        with self._db.read() as tx:
            return store.load_models(tx, provider=provider, secret_id=secret_id)

    def update_model(
        self,
        id: str,
        *,
        name: str | None,
        secret_id: str | None,
        model_name: str | None,
        provider: str | None,
        user: str | None,
    ) -> Model:
        given = {"name": name, "secret_id": secret_id, "model_name": model_name, "provider": provider}
        changes = {key: value for key, value in {**given, "updated_by": user}.items() if value is not None}
        with self._db.write() as tx:
            store.load_one(tx, models, id=id)
            if secret_id is not None:
                store.load_one(tx, secrets, id=secret_id)
            taken = f"Model definition with name '{name}' already exists"
            store.change(tx, models, id, {**changes, "updated_ms": self._now()}, taken)
            return store.load_model(tx, id)

    def delete_model(self, id: str) -> None:
        with self._db.write() as tx:
            store.load_one(tx, models, id=id)
            if tx.execute(select(mappings.c.id).where(mappings.c.model_id == id).limit(1)).scalar() is not None:
                raise InvalidTransition(
                    "Cannot delete model definition that is currently in use by endpoints. "
                    "Detach it from all endpoints first."
                )
            store.remove(tx, models, id)

    # Endpoints

    def create_endpoint(
        self,
        name: str,
        choices: Sequence[Choice],
        *,
        routing: str | None,
        fallback: Fallback | None,
        experiment_id: str | None,
        usage_tracking: bool,
        user: str | None,
    ) -> Endpoint:
        _check_name(name)
        if not choices:
            raise InvalidInput("Endpoint must have at least one model configuration")
        id = f"e-{uuid.uuid4().hex}"
        with self._db.write() as tx:
            wanted = {choice.model_id for choice in choices}
            known = {model.id for model in store.load_models(tx, ids=sorted(wanted))}
            if missing := wanted - known:
                raise NotFound(f"Model definitions not found: {', '.join(sorted(missing))}")
            if usage_tracking and experiment_id is None:
                experiment_id = str(self._experiment(tx, name, id))
            row = {
                "id": id,
                "name": name,
                "routing": routing,
                "fallback": _fallback(fallback, choices),
                "experiment_id": experiment_number(experiment_id) if experiment_id else None,
                "usage_tracking": usage_tracking,
                **self._fresh(user),
            }
            store.add(tx, endpoints, row, f"Endpoint with name '{name}' already exists")
            for choice in choices:
                self._map(tx, id, choice, user)
            return store.load_endpoint(tx, id=id)

    def get_endpoint(self, *, id: str | None = None, name: str | None = None) -> Endpoint:
        with self._db.read() as tx:
            return store.load_endpoint(tx, id=id, name=name)

    def update_endpoint(
        self,
        id: str,
        *,
        name: str | None,
        choices: Sequence[Choice],
        routing: str | None,
        fallback: Fallback | None,
        experiment_id: str | None,
        usage_tracking: bool | None,
        user: str | None,
    ) -> Endpoint:
        """What is None, and models if there are none, stay as they are."""
        if name is not None:
            _check_name(name)
        with self._db.write() as tx:
            row = store.load_one(tx, endpoints, id=id)
            if usage_tracking and experiment_id is None and row.experiment_id is None:
                experiment_id = str(self._experiment(tx, name or row.name, id))
            given = {
                "name": name,
                "routing": routing,
                "usage_tracking": usage_tracking,
                "experiment_id": experiment_number(experiment_id) if experiment_id else None,
                "fallback": self._changed_models(tx, row, choices, fallback, user),
                "updated_by": user,
            }
            changes = {key: value for key, value in given.items() if value is not None}
            taken = f"Endpoint with name '{name}' already exists"
            store.change(tx, endpoints, id, {**changes, "updated_ms": self._now()}, taken)
            return store.load_endpoint(tx, id=id)

    def _changed_models(
        self, tx: Connection, row: Row[Any], choices: Sequence[Choice], fallback: Fallback | None, user: str | None
    ) -> str | None:
        """The fallback that there is from now on; None where it stays."""
        if choices:
            for choice in choices:
                store.load_one(tx, models, id=choice.model_id)
            tx.execute(delete(mappings).where(mappings.c.endpoint_id == row.id))
            for choice in choices:
                self._map(tx, row.id, choice, user)
            return _fallback(fallback or Fallback(strategy=None, max_attempts=None), choices)
        if fallback is None:
            return None
        kept = json.loads(row.fallback) if row.fallback else {}
        return json.dumps({**_told(fallback), "model_definition_ids": kept.get("model_definition_ids", [])})

    def delete_endpoint(self, id: str) -> None:
        with self._db.write() as tx:
            store.remove(tx, endpoints, id)

    def list_endpoints(self, *, provider: str | None = None, secret_id: str | None = None) -> list[Endpoint]:
        """Those that have a model, of this provider or with this secret."""
        joined = (mappings.c.endpoint_id == endpoints.c.id, models.c.id == mappings.c.model_id)
        chosen = [models.c.provider == provider] if provider else []
        chosen += [models.c.secret_id == secret_id] if secret_id else []
        query = select(endpoints).where(exists().where(*joined, *chosen))
        with self._db.read() as tx:
            rows = tx.execute(query.order_by(endpoints.c.created_ms, endpoints.c.id)).all()
            return store.load_endpoints(tx, rows)

    def attach(self, endpoint_id: str, choice: Choice, *, user: str | None) -> Mapped:
        with self._db.write() as tx:
            store.load_one(tx, endpoints, id=endpoint_id)
            store.load_one(tx, models, id=choice.model_id)
            id = self._map(tx, endpoint_id, choice, user)
            changes = {"updated_ms": self._now(), **({"updated_by": user} if user else {})}
            store.change(tx, endpoints, endpoint_id, changes, "")
            return store.load_mapping(tx, id)

    def detach(self, endpoint_id: str, model_id: str) -> None:
        of_both = (mappings.c.endpoint_id == endpoint_id, mappings.c.model_id == model_id)
        with self._db.write() as tx:
            id = tx.execute(select(mappings.c.id).where(*of_both).limit(1)).scalar()
            if id is None:
                store.load_one(tx, endpoints, id=endpoint_id)
                raise NotFound(f"Model definition '{model_id}' is not attached to endpoint '{endpoint_id}'")
            tx.execute(delete(mappings).where(mappings.c.id == id))

    # Who uses an endpoint, and its tags

    def bind(self, endpoint_id: str, resource_type: str, resource_id: str, *, user: str | None) -> Row[Any]:
        if resource_type != "scorer":
            raise InvalidInput(f"unknown resource type '{resource_type}'; known: scorer")
        row = {"endpoint_id": endpoint_id, "resource_type": resource_type, "resource_id": resource_id}
        with self._db.write() as tx:
            store.load_one(tx, endpoints, id=endpoint_id)
            taken = f"{resource_type} '{resource_id}' is bound to endpoint '{endpoint_id}' already"
            store.add(tx, bindings, {**row, **self._fresh(user)}, taken)
            return tx.execute(_bound(**row)).one()

    def unbind(self, endpoint_id: str, resource_type: str, resource_id: str) -> None:
        row = {"endpoint_id": endpoint_id, "resource_type": resource_type, "resource_id": resource_id}
        with self._db.write() as tx:
            chosen = [bindings.c[name] == value for name, value in row.items()]
            if tx.execute(delete(bindings).where(*chosen)).rowcount == 0:
                told = ", ".join(f"{name}='{value}'" for name, value in row.items())
                raise NotFound(f"GatewayEndpointBinding not found ({told})")

    def list_bindings(self, **chosen: str | None) -> list[Row[Any]]:
        with self._db.read() as tx:
            return list(tx.execute(_bound(**chosen)).all())

    def set_tag(self, endpoint_id: str, key: str, value: str) -> None:
        with self._db.write() as tx:
            store.load_one(tx, endpoints, id=endpoint_id)
            insert_or_replace(tx, endpoint_tags, {"endpoint_id": endpoint_id, "key": key, "value": value})

    def delete_tag(self, endpoint_id: str, key: str) -> None:
        with self._db.write() as tx:
            store.load_one(tx, endpoints, id=endpoint_id)
            of_both = (endpoint_tags.c.endpoint_id == endpoint_id, endpoint_tags.c.key == key)
            tx.execute(delete(endpoint_tags).where(*of_both))

    def _map(self, tx: Connection, endpoint_id: str, choice: Choice, user: str | None) -> str:
        row = {
            "id": f"m-{uuid.uuid4().hex}",
            "endpoint_id": endpoint_id,
            "model_id": choice.model_id,
            "weight": choice.weight,
            "linkage": choice.linkage,
            "fallback_order": choice.fallback_order,
            "created_ms": self._now(),
            "created_by": user,
        }
        taken = f"Model definition '{choice.model_id}' is already attached to endpoint '{endpoint_id}'"
        store.add(tx, mappings, row, taken)
        return str(row["id"])

    def _experiment(self, tx: Connection, name: str, endpoint_id: str) -> int:
        """Where calls of the endpoint are traced; made if it is not there."""
        title = f"gateway/{name}"
        found = tx.execute(select(experiments.c.id).where(experiments.c.name == title)).scalar()
        if found is not None:
            return int(found)
        tags = [
            Pair("mlflow.experiment.sourceType", "GATEWAY"),
            Pair("mlflow.experiment.sourceId", endpoint_id),
            Pair("mlflow.experiment.isGateway", "true"),
        ]
        made = put_experiment(tx, title, None, tags, now_ms=self._now())
        if made is None:  # another server has made it just now
            made = int(tx.execute(select(experiments.c.id).where(experiments.c.name == title)).scalar_one())
        return made

    def _sealed(self, values: Mapping[str, str]) -> dict[str, Any]:
        return {"sealed": self._seal.wrap(values), "masked": json.dumps({key: mask(values[key]) for key in values})}

    def _fresh(self, user: str | None) -> dict[str, Any]:
        now = self._now()
        return {"created_ms": now, "updated_ms": now, "created_by": user, "updated_by": user}

    def _now(self) -> int:
        return int(self._clock.now() * 1000)


def mask(value: str) -> str:
    """Enough of it to know it again."""
    return f"{value[:3]}...{value[-4:]}" if len(value) >= 8 else "***"


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"Invalid endpoint name '{name}'. Name can only contain letters, numbers, underscores, hyphens, and dots."
        )


def _told(fallback: Fallback | None) -> dict[str, Any]:
    return {
        "strategy": fallback.strategy if fallback else None,
        "max_attempts": fallback.max_attempts if fallback else None,
    }


def _fallback(fallback: Fallback | None, choices: Sequence[Choice]) -> str | None:
    ids = [choice.model_id for choice in choices if choice.linkage == "FALLBACK"]
    return json.dumps({**_told(fallback), "model_definition_ids": ids}) if fallback or ids else None


def _bound(**chosen: str | None) -> Any:
    query = select(bindings).where(*(bindings.c[name] == value for name, value in chosen.items() if value is not None))
    return query.order_by(bindings.c.created_ms, bindings.c.endpoint_id, bindings.c.resource_id)
