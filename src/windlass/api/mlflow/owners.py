"""Whose artifacts a call means: the place of a run's, a logged model's or a model version's. Each raises NotFound."""

from __future__ import annotations

from windlass.api.context import Services
from windlass.core.errors import NotFound
from windlass.core.storable import storable_text
from windlass.experiments.artifacturis import load_model_uri, load_run_uri
from windlass.experiments.locations import extended
from windlass.registry.artifacturis import load_version_uri
from windlass.registry.naming import version_of


def run_uri(services: Services, run_id: str) -> str:
    with services.db.read() as tx:
        found = load_run_uri(tx, storable_text(run_id))
    if found is None:
        raise NotFound(f"Run with id={run_id} not found")
    return found


def model_uri(services: Services, model_id: str) -> str:
    with services.db.read() as tx:
        found = load_model_uri(tx, storable_text(model_id))
    if found is None:
        raise NotFound(f"Logged model with ID '{model_id}' not found.")
    return found


def version_uri(services: Services, name: str, version: str) -> str:
    """A version whose source is `runs:/...` has the files of that run."""
    with services.db.read() as tx:
        found = load_version_uri(tx, name, version_of(version)) if version.isdecimal() else None
    if found is None:
        raise NotFound(f"Model Version (name={name}, version={version}) not found")
    if not found.startswith("runs:/"):
        return found
    run_id, _, path = found.removeprefix("runs:/").partition("/")
    root = run_uri(services, run_id)
    return extended(root, path) if path else root
