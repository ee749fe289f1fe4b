"""What a version comes from: a run, a logged model, another version. Functions over an open transaction."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select

from windlass.core.errors import NotFound, WindlassError
from windlass.db.insertion import insert_or_replace
from windlass.experiments.artifacturis import load_run_uri
from windlass.experiments.tables import logged_model_tags, logged_models
from windlass.registry import sources
from windlass.registry.naming import LATEST
from windlass.registry.store import load_aliases, load_latest, load_version
from windlass.registry.types import ModelVersion, NewVersion, Stage, marks_prompt

_VERSIONS_TAG = "mlflow.modelVersions"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedModel:
    location: str
    run_id: str | None


def check_source(tx: Connection, new: NewVersion, *, pattern: str | None) -> None:
    """Raises InvalidInput, or NotFound for a run or model that is not there."""
    sources.check_pattern(new.source, pattern)
    if marks_prompt(new.tags):
        sources.check_prompt_source(new.source)
    elif not sources.is_local(new.source):
        sources.check_remote(new.source)
    elif new.model_id:
        sources.check_local(new.source, load_logged(tx, new.model_id).location, "model_id")
    else:
        sources.check_local(new.source, _run_root(tx, new.run_id) if new.run_id else None, "run_id")


def trace_source(tx: Connection, new: NewVersion) -> tuple[NewVersion, str]:
    """The version with the run it comes from, if that was not given; and where its files are."""
    location = new.source
    uri = sources.read_model_uri(new.source)
    if uri is not None:
        try:
            if uri.model_id is not None:
                model = load_logged(tx, uri.model_id)
                location = model.location
                new = replace(new, run_id=new.run_id or model.run_id)
            else:
                origin = load_by_uri(tx, uri)
                location = origin.location or origin.source or ""
        except WindlassError as error:
            raise WindlassError(
                f"Unable to fetch model from model URI source artifact location '{new.source}'.Error: {error.message}"
            ) from error
    if new.model_id and not new.run_id:
        new = replace(new, run_id=load_logged(tx, new.model_id).run_id)
    return new, location


def load_by_uri(tx: Connection, uri: sources.ModelUri) -> ModelVersion:
    if uri.version is not None:
        return load_version(tx, uri.name, uri.version)
    if uri.alias is not None and uri.alias.lower() != LATEST:
        version = load_aliases(tx, [uri.name])[uri.name].get(uri.alias)
        if version is None:
            raise NotFound(f"Registered model alias {uri.alias} not found.")
        return load_version(tx, uri.name, version)
    stage = None if uri.stage is None else Stage.named(uri.stage)
    found = [version for version in load_latest(tx, [uri.name]) if stage is None or version.stage == stage]
    if not found:
        raise NotFound(f"No versions of model with name '{uri.name}' and stage '{stage}' found")
    return max(found, key=lambda version: version.version)


def load_logged(tx: Connection, model_id: str, *, lock: bool = False) -> LoggedModel:
    c = logged_models.c
    query = select(c.artifact_location, c.source_run_id).where(c.id == model_id, c.stage == "active")
    row = tx.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFound(f"Logged model with ID '{model_id}' not found.")
    return LoggedModel(location=row.artifact_location, run_id=row.source_run_id)


def note_version(tx: Connection, model_id: str, name: str, version: int) -> None:
    """On a logged model, which versions were made of it."""
    load_logged(tx, model_id, lock=True)
    c = logged_model_tags.c
    query = select(c.value).where(c.model_id == model_id, c.key == _VERSIONS_TAG)
    value = json.dumps([*_listed(tx.execute(query).scalar()), {"name": name, "version": version}])
    insert_or_replace(tx, logged_model_tags, {"model_id": model_id, "key": _VERSIONS_TAG, "value": value})


def _listed(text: str | None) -> list[Any]:
    """Clients may have written anything into a tag."""
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _run_root(tx: Connection, run_id: str) -> str:
    root = load_run_uri(tx, run_id)
    if root is None:
        raise NotFound(f"Run with id={run_id} not found")
    return root
