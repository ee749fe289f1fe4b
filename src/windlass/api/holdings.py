"""The files of a run or of a logged model, by whatever names it. MLflow 3 keeps what `log_model` writes with the model
that it makes; below the model's name it is found among the run's files too, as MLflow's client finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sqlalchemy import Connection

from windlass.artifacts.paths import clean_path
from windlass.artifacts.places import ArtifactPlaces
from windlass.artifacts.types import Content, Entry
from windlass.core.errors import Ambiguous, NotFound
from windlass.db.database import Database
from windlass.experiments.artifacturis import ModelPlace, find_models, load_models_of, load_run_uri
from windlass.runs.references import resolve_id


class Holding(NamedTuple):
    """Whose files they are, where these are, and models that it has logged, the newest first."""

    id: str
    root: str
    models: Sequence[ModelPlace] = ()


def find_run(tx: Connection, ref: str) -> Holding:
    """Of a run of ours, by any name of it, or of one that an MLflow client made. Without its models."""
    if found := load_run_uri(tx, ref):
        return Holding(ref, found)
    run_id = resolve_id(tx, ref)
    return Holding(run_id, load_run_uri(tx, run_id) or f"mlflow-artifacts:/0/{run_id}/artifacts")


def find_holding(db: Database, ref: str, path: str) -> Holding:
    """Of a run, or of a logged model by its id or the beginning of it; a run may be called `m-1`. With the models that
    `path` may mean."""
    name, _, _ = clean_path(path).partition("/")
    with db.read() as tx:
        try:
            run = find_run(tx, ref)
        except NotFound:
            if not ref.startswith("m-"):
                raise
            return _model(find_models(tx, ref), ref)
        return run._replace(models=load_models_of(tx, run.id, name or None))


def _model(found: Sequence[ModelPlace], ref: str) -> Holding:
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise Ambiguous(f"'{ref}' is short for several logged models: {ids}", hint="type one character more")
    if not found:
        raise NotFound(f"there is no logged model '{ref}'", hint="`windlass artifacts ls RUN` names those of a run")
    return Holding(found[0].id, found[0].uri)


def entries(places: ArtifactPlaces, holding: Holding, path: str, *, recursive: bool) -> Sequence[Entry]:
    """What lies in a folder. A run's own file counts before a model's of the same path."""
    listing = places.files_below if recursive else places.children
    found = {entry.path: entry for entry in listing(holding.root, path)}
    name, _, rest = clean_path(path).partition("/")
    for model in holding.models[:1] if name else ():
        for entry in listing(model.uri, rest):
            whole = f"{model.name}/{entry.path}"
            found.setdefault(whole, replace(entry, path=whole))
    return sorted(found.values(), key=lambda entry: entry.path)


def content(places: ArtifactPlaces, holding: Holding, path: str) -> Content:
    """Raises NotFound, and Conflict for a folder."""
    _, _, rest = clean_path(path).partition("/")
    try:
        return places.open(holding.root, path)
    except NotFound:
        if not rest or not holding.models:
            raise
    return places.open(holding.models[0].uri, rest)
