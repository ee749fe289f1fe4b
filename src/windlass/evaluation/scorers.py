"""Scorers: judges of traces that are registered with an experiment, in versions. One transaction each.

A scorer is JSON that its client makes and reads. Only the model that it asks stands out: one of the gateway is kept by
its endpoint's id and shown by its name, so that an endpoint can be renamed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select

from windlass.core.clock import Clock
from windlass.core.errors import InvalidInput, NotFound
from windlass.db.database import Database
from windlass.db.insertion import insert_new, insert_or_replace
from windlass.evaluation.tables import scorer_versions, scorers, scoring
from windlass.experiments.tables import experiments
from windlass.gateway.store import bind, load_endpoint, unbind
from windlass.gateway.tables import endpoints
from windlass.traces.conditions import read_conditions
from windlass.traces.store import experiment_number, load_location

_PARTS = ("instructions_judge_pydantic_data", "builtin_scorer_pydantic_data")
_NESTED, _FOREIGN = "memory_augmented_judge_data", "third_party_scorer_data"
_GATEWAY = "gateway:/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    id: str
    experiment_id: int
    name: str
    version: int
    serialized: str
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    id: str
    scorer_id: str
    experiment_id: int
    sample_rate: float
    filter: str | None


class ScorerService:
    def __init__(self, *, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def register(self, experiment_id: str, name: str, serialized: str) -> Scorer:
        """Another version if there is one of that name."""
        if not name.strip():
            raise InvalidInput("Scorer name cannot be empty or contain only whitespace.")
        content = _read(serialized)
        model = model_of(content)
        _check_model(model)
        now = int(self._clock.now() * 1000)
        with self._db.write() as tx:
            load_location(tx, experiment_id, active=True)
            number = experiment_number(experiment_id)
            endpoint = load_endpoint(tx, name=model.removeprefix(_GATEWAY)) if _is_gateways(model) else None
            if endpoint is not None:
                serialized = json.dumps(with_model(content, _GATEWAY + endpoint.id))
            insert_new(tx, scorers, {"id": str(uuid.uuid4()), "experiment_id": number, "name": name})
            scorer_id = _find(tx, experiment_id, name, locked=True).id
            highest = select(func.max(scorer_versions.c.version)).where(scorer_versions.c.scorer_id == scorer_id)
            version = int(tx.execute(highest).scalar() or 0) + 1
            row = {"scorer_id": scorer_id, "version": version, "serialized": serialized, "created_ms": now}
            tx.execute(insert(scorer_versions).values(**row))
            if endpoint is not None:
                unbind(tx, resource_type="scorer", resource_id=scorer_id)
                used = {"endpoint_id": endpoint.id, "resource_type": "scorer", "resource_id": scorer_id}
                bind(tx, {**used, "display_name": name, "created_ms": now, "updated_ms": now})
            [found] = _load(tx, [scorer_versions.c.scorer_id == scorer_id, scorer_versions.c.version == version])
            return found

    def newest(self, experiment_id: str | None) -> list[Scorer]:
        """The newest version of each; of all active experiments if none is named."""
        with self._db.read() as tx:
            active = select(experiments.c.id).where(experiments.c.stage == "active")
            if experiment_id:
                load_location(tx, experiment_id, active=True)
                active = active.where(experiments.c.id == experiment_number(experiment_id))
            newest = (
                select(scorer_versions.c.scorer_id, func.max(scorer_versions.c.version).label("version"))
                .group_by(scorer_versions.c.scorer_id)
                .subquery()
            )
            return _load(
                tx,
                [
                    scorers.c.experiment_id.in_(active),
                    scorer_versions.c.scorer_id == newest.c.scorer_id,
                    scorer_versions.c.version == newest.c.version,
                ],
            )

    def versions(self, experiment_id: str, name: str) -> list[Scorer]:
        with self._db.read() as tx:
            found = _load(tx, [scorer_versions.c.scorer_id == _find(tx, experiment_id, name).id])
        if not found:
            raise NotFound(f"Scorer with name '{name}' not found for experiment {experiment_id}.")
        return found

    def get(self, experiment_id: str, name: str, version: int | None) -> Scorer:
        """The newest if no version is named."""
        found = self.versions(experiment_id, name)
        chosen = found[-1] if version is None else next((one for one in found if one.version == version), None)
        if chosen is None:
            raise NotFound(f"Scorer with name '{name}' and version {version} not found for experiment {experiment_id}.")
        return chosen

    def delete(self, experiment_id: str, name: str, version: int | None) -> None:
        """All of it if no version is named."""
        with self._db.write() as tx:
            scorer_id = _find(tx, experiment_id, name).id
            if version is None:
                unbind(tx, resource_type="scorer", resource_id=scorer_id)
                tx.execute(delete(scorers).where(scorers.c.id == scorer_id))
                return
            of_both = (scorer_versions.c.scorer_id == scorer_id, scorer_versions.c.version == version)
            if tx.execute(delete(scorer_versions).where(*of_both)).rowcount == 0:
                raise NotFound(
                    f"Scorer with name '{name}' and version {version} not found for experiment {experiment_id}."
                )

    def samplings(self, scorer_ids: Sequence[str]) -> list[Sampling]:
        with self._db.read() as tx:
            rows = tx.execute(select(scoring).where(scoring.c.scorer_id.in_(list(scorer_ids))))
            return [Sampling(**row._mapping) for row in rows]

    def sample(self, experiment_id: str, name: str, *, sample_rate: float, filter: str | None) -> Sampling:
        if not 0 <= sample_rate <= 1:
            raise InvalidInput(f"sample_rate must be between 0.0 and 1.0, got {sample_rate}")
        read_conditions(filter)
        with self._db.write() as tx:
            scorer_id = _find(tx, experiment_id, name).id
            newest = select(scorer_versions.c.serialized).where(scorer_versions.c.scorer_id == scorer_id)
            serialized = tx.execute(newest.order_by(scorer_versions.c.version.desc()).limit(1)).scalar()
            if serialized is not None and sample_rate > 0:
                _check_sampled(name, _read(serialized))
            found = Sampling(
                id=uuid.uuid4().hex,
                scorer_id=scorer_id,
                experiment_id=experiment_number(experiment_id),
                sample_rate=sample_rate,
                filter=filter,
            )
            insert_or_replace(tx, scoring, {field: getattr(found, field) for field in Sampling.__slots__})
        return found


def _find(tx: Connection, experiment_id: str, name: str, *, locked: bool = False) -> Row[Any]:
    load_location(tx, experiment_id, active=True)
    query = select(scorers).where(scorers.c.experiment_id == experiment_number(experiment_id), scorers.c.name == name)
    row = tx.execute(query.with_for_update() if locked else query).one_or_none()
    if row is None:
        raise NotFound(f"Scorer with name '{name}' not found for experiment {experiment_id}.")
    return row


def _load(tx: Connection, chosen: Sequence[Any]) -> list[Scorer]:
    query = (
        select(scorers, scorer_versions.c.version, scorer_versions.c.serialized, scorer_versions.c.created_ms)
        .where(scorers.c.id == scorer_versions.c.scorer_id, *chosen)
        .order_by(scorers.c.experiment_id, scorers.c.name, scorer_versions.c.version)
    )
    rows = tx.execute(query).all()
    names: dict[str, str] = {}
    if any(_GATEWAY in row.serialized for row in rows):
        names = {row.id: row.name for row in tx.execute(select(endpoints.c.id, endpoints.c.name))}
    return [Scorer(**{**row._mapping, "serialized": _shown(row.serialized, names)}) for row in rows]


def _shown(serialized: str, names: Mapping[str, str]) -> str:
    """With the name of the gateway's endpoint; without a model if the endpoint is gone."""
    content = json.loads(serialized)
    model = model_of(content)
    if not isinstance(model, str) or not _is_gateways(model):
        return serialized
    name = names.get(model.removeprefix(_GATEWAY))
    return json.dumps(with_model(content, _GATEWAY + name if name else None))


def _read(serialized: str) -> dict[str, Any]:
    try:
        content = json.loads(serialized)
    except (ValueError, RecursionError):
        raise InvalidInput("serialized_scorer must be valid JSON") from None
    if not isinstance(content, dict):
        raise InvalidInput("serialized_scorer must be a JSON object")
    return content


def model_of(content: Mapping[str, Any]) -> Any:
    for part in _PARTS:
        if content.get(part):
            return _object(content, part).get("model")
    if content.get(_NESTED):
        return model_of(_object(_object(content, _NESTED), "base_judge"))
    return _object(content, _FOREIGN).get("model")


def _object(content: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    found = content.get(part) or {}
    if not isinstance(found, Mapping):
        raise InvalidInput(f"{part} of a scorer must be a JSON object, not {found!r}")
    return found


def with_model(content: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    changed = dict(content)
    for part in _PARTS:
        if content.get(part):
            return changed | {part: {**content[part], "model": model}}
    if content.get(_NESTED):
        base = with_model(content[_NESTED].get("base_judge", {}), model)
        return changed | {_NESTED: {**content[_NESTED], "base_judge": base}}
    if (content.get(_FOREIGN) or {}).get("model") is not None:
        return changed | {_FOREIGN: {**content[_FOREIGN], "model": model}}
    return changed


def _check_model(model: Any) -> None:
    if model is not None and not isinstance(model, str):
        raise InvalidInput(f"Scorer model must be a string, got {type(model).__name__}.")
    if model is not None and not model.strip():
        raise InvalidInput("Scorer model cannot be empty or contain only whitespace.")


def _is_gateways(model: Any) -> bool:
    return isinstance(model, str) and model.startswith(_GATEWAY) and len(model) > len(_GATEWAY)


def _check_sampled(name: str, content: Mapping[str, Any]) -> None:
    if not _is_gateways(model_of(content)):
        raise InvalidInput(
            f"Scorer '{name}' does not use a gateway model. "
            "Automatic evaluation is only supported for scorers that use gateway models."
        )
    judge = content.get(_PARTS[0]) or {}
    if "{{ expectations }}" in str(judge.get("instructions", "")):
        raise InvalidInput(
            f"Scorer '{name}' requires expectations, but scorers with "
            "expectations are not currently supported for automatic evaluation."
        )
