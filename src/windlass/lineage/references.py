"""Things by what people call them: models and their versions, datasets, checkpoints, runs. What is not there is told
with what is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from windlass.checkpoints.tables import checkpoints
from windlass.core.errors import Ambiguous, InvalidInput, NotFound
from windlass.core.names import listed, missing
from windlass.experiments.tables import input_datasets, logged_models
from windlass.lineage.walk import Key, dataset_key
from windlass.registry.tables import model_versions, registered_model_aliases, registered_models
from windlass.runs.references import resolve_id
from windlass.wire.lineage import ThingKind

_VERSION = re.compile(r"^(?:models:/|version:)(?P<name>[^@]+?)(?:/(?P<version>\d+)|@(?P<alias>[^/@]+))?$")
_LONGEST_VERSION = 9  # digits: databases count no further
_DATASET = re.compile(r"^dataset:(?P<name>.+?)(?:@(?P<digest>[^@]+))?$")
_MOST = 1_000


def find_key(tx: Connection, ref: str) -> Key:
    """Raises NotFound, Ambiguous, and InvalidInput where a name alone says too little."""
    kind, _, rest = ref.partition(":")
    if kind == ThingKind.MODEL or ref.startswith("m-"):
        return _by_id(tx, ThingKind.MODEL, logged_models.c.id, rest if kind == ThingKind.MODEL else ref)
    if found := _VERSION.match(ref):
        return _version(tx, found["name"], found["version"], found["alias"])
    if found := _DATASET.match(ref):
        return _dataset(tx, found["name"], found["digest"])
    if kind == ThingKind.CHECKPOINT:
        return _by_id(tx, ThingKind.CHECKPOINT, checkpoints.c.id, rest)
    try:
        return Key(ThingKind.RUN, resolve_id(tx, rest if kind == ThingKind.RUN and rest else ref))
    except NotFound as error:
        if not (ways := _ways_to_ask(tx, ref)):
            raise
        raise NotFound(error.message, hint=f"write {' or '.join(ways)}") from None


def _ways_to_ask(tx: Connection, name: str) -> Sequence[str]:
    """For what has this name and is no run."""
    versions = _all(tx, model_versions.c.version, model_versions.c.name == name)
    datasets = _all(tx, input_datasets.c.name, input_datasets.c.name == name)
    return [*(f"models:/{name}/{version}" for version in versions[-1:]), *(f"dataset:{one}" for one in datasets)]


def _by_id(tx: Connection, kind: ThingKind, column: ColumnElement[Any], ref: str) -> Key:
    """By its id, or a unique beginning of it."""
    ids = _all(tx, column, column >= ref, column < ref + "\x7f", most=10)
    if ref in ids:
        ids = [ref]
    if len(ids) > 1:
        raise Ambiguous(f"'{ref}' is short for several: {', '.join(ids)}", hint="type one character more")
    if not ids or not ref:
        raise NotFound(f"there is no {kind} '{ref}'")
    return Key(kind, ids[0])


def _version(tx: Connection, name: str, version: str | None, alias: str | None) -> Key:
    versions = sorted(_all(tx, model_versions.c.version, model_versions.c.name == name))
    held = registered_model_aliases
    aliases = {row.alias: row.version for row in tx.execute(select(held).where(held.c.name == name))}
    if not versions:
        known = _all(tx, registered_models.c.name)
        has = "has no versions" if name in known else None
        raise NotFound(f"model '{name}' {has}" if has else missing("there is no model", name, known))
    options = f"it has {listed([*map(str, versions), *(f'@{one}' for one in sorted(aliases))])}"
    if alias is not None:
        version = None if alias not in aliases else str(aliases[alias])
        if version is None:
            raise NotFound(f"model '{name}' has no alias '{alias}'", hint=options)
    if version is None:
        raise InvalidInput(
            f"model '{name}' has several things to ask for: {options}", hint="write models:/NAME/VERSION"
        )
    if len(version) > _LONGEST_VERSION or int(version) not in versions:
        raise NotFound(f"model '{name}' has no version {version}", hint=options)
    return Key(ThingKind.VERSION, f"{name}/{int(version)}")


def _dataset(tx: Connection, name: str, digest: str | None) -> Key:
    c = input_datasets.c
    found = _all(tx, c.digest, c.name == name)
    if not found and (row := tx.execute(select(c.name, c.digest).where(c.id == name)).first()):
        return dataset_key(row.name, row.digest)  # as keys of the version before say it
    if not found:
        raise NotFound(missing("there is no dataset", name, set(_all(tx, c.name))))
    if digest is None and len(found) == 1:
        return dataset_key(name, found[0])
    options = f"there are {listed(sorted(found))}"
    if digest is None:
        raise InvalidInput(f"there are several versions of dataset '{name}'", hint=f"dataset:NAME@DIGEST; {options}")
    if digest not in found:
        raise NotFound(f"dataset '{name}' has no digest '{digest}'", hint=options)
    return dataset_key(name, digest)


def _all(tx: Connection, column: ColumnElement[Any], *where: ColumnElement[bool], most: int = _MOST) -> Sequence[Any]:
    return tx.execute(select(column).where(*where).distinct().order_by(column).limit(most)).scalars().all()
