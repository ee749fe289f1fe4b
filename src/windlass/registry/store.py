"""Reading and writing the registry. Functions over an open transaction; who calls has checked names and values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, func, insert, select, tuple_, update

from windlass.core.errors import NotFound
from windlass.db.insertion import insert_new, insert_or_replace
from windlass.registry.naming import LARGEST_VERSION
from windlass.registry.tables import (
    model_version_tags,
    model_versions,
    registered_model_aliases,
    registered_model_tags,
    registered_models,
)
from windlass.registry.types import ModelVersion, NewVersion, RegisteredModel, Stage

REDACTED = "REDACTED"
_AT_ONCE = 500  # names in one statement: SQLite takes some thousand values at most


# ---- models ----------------------------------------------------------------------------------------------------------


def put_model(tx: Connection, name: str, description: str | None, tags: Mapping[str, str], *, at: float) -> bool:
    """False if there is one of that name, which is left as it is."""
    row = {"name": name, "description": description, "created_at": at, "updated_at": at}
    if not insert_new(tx, registered_models, row):
        return False
    if tags:
        rows = [{"name": name, "key": key, "value": value} for key, value in tags.items()]
        tx.execute(insert(registered_model_tags), rows)
    return True


def load_model(tx: Connection, name: str) -> RegisteredModel:
    found = load_models(tx, [name])
    if not found:
        raise no_model(name)
    return found[0]


def load_models(tx: Connection, names: Sequence[str]) -> list[RegisteredModel]:
    """In the order of `names`; those that are not there are left out."""
    by_name: dict[str, RegisteredModel] = {}
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        tags, aliases = _tags_of_models(tx, some), load_aliases(tx, some)
        latest: dict[str, list[ModelVersion]] = defaultdict(list)
        for version in load_latest(tx, some):
            latest[version.name].append(version)
        for row in tx.execute(select(registered_models).where(registered_models.c.name.in_(some))):
            by_name[row.name] = RegisteredModel(
                **row._mapping, tags=tags[row.name], aliases=aliases[row.name], latest=tuple(latest[row.name])
            )
    return [by_name[name] for name in names if name in by_name]


def lock_model(tx: Connection, name: str) -> None:
    """Nobody else numbers a version of it until the transaction ends."""
    here = registered_models.c.name == name
    if tx.execute(select(registered_models.c.name).where(here).with_for_update()).first() is None:
        raise no_model(name)


def has_model(tx: Connection, name: str) -> bool:
    here = registered_models.c.name == name
    return tx.execute(select(registered_models.c.name).where(here)).first() is not None


def update_model(tx: Connection, name: str, **changes: Any) -> None:
    if tx.execute(update(registered_models).where(registered_models.c.name == name).values(**changes)).rowcount == 0:
        raise no_model(name)


def rename_model(tx: Connection, name: str, new_name: str, *, at: float) -> None:
    """Versions, tags and aliases follow by their keys. Who calls holds the model's lock."""
    here = registered_models.c.name == name
    tx.execute(update(registered_models).where(here).values(name=new_name, updated_at=at))
    tx.execute(update(model_versions).where(model_versions.c.name == new_name).values(updated_at=at))


def delete_model(tx: Connection, name: str) -> None:
    if tx.execute(delete(registered_models).where(registered_models.c.name == name)).rowcount == 0:
        raise no_model(name)


def put_model_tag(tx: Connection, name: str, key: str, value: str) -> None:
    insert_or_replace(tx, registered_model_tags, {"name": name, "key": key, "value": value})


def delete_model_tag(tx: Connection, name: str, key: str) -> None:
    c = registered_model_tags.c
    tx.execute(delete(registered_model_tags).where(c.name == name, c.key == key))


def load_model_tags(tx: Connection, name: str) -> dict[str, str]:
    return _tags_of_models(tx, [name])[name]


def _tags_of_models(tx: Connection, names: Sequence[str]) -> dict[str, dict[str, str]]:
    c = registered_model_tags.c
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in tx.execute(select(registered_model_tags).where(c.name.in_(names)).order_by(c.name, c.key)):
        found[row.name][row.key] = row.value
    return found


# ---- aliases ---------------------------------------------------------------------------------------------------------


def put_alias(tx: Connection, name: str, alias: str, version: int) -> None:
    insert_or_replace(tx, registered_model_aliases, {"name": name, "alias": alias, "version": version})


def delete_alias(tx: Connection, name: str, alias: str) -> None:
    c = registered_model_aliases.c
    tx.execute(delete(registered_model_aliases).where(c.name == name, c.alias == alias))


def load_aliases(tx: Connection, names: Sequence[str]) -> dict[str, dict[str, int]]:
    c = registered_model_aliases.c
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for row in tx.execute(select(registered_model_aliases).where(c.name.in_(names)).order_by(c.name, c.alias)):
        found[row.name][row.alias] = row.version
    return found


# ---- versions --------------------------------------------------------------------------------------------------------


def put_version(tx: Connection, new: NewVersion, *, location: str, at: float) -> ModelVersion:
    """Who calls holds the model's lock."""
    last = tx.execute(select(func.max(model_versions.c.version)).where(model_versions.c.name == new.name)).scalar()
    row = {
        "name": new.name,
        "version": (last or 0) + 1,
        "stage": Stage.NONE,
        "description": new.description,
        "source": new.source,
        "location": location,
        "run_id": new.run_id,
        "run_link": new.run_link,
        "model_id": new.model_id or None,
        "created_at": at,
        "updated_at": at,
    }
    tx.execute(insert(model_versions).values(**row))
    key = {"name": new.name, "version": row["version"]}
    if new.tags:
        tx.execute(insert(model_version_tags), [{**key, "key": tag, "value": text} for tag, text in new.tags.items()])
    tx.execute(update(registered_models).where(registered_models.c.name == new.name).values(updated_at=at))
    return ModelVersion(**row, tags=dict(new.tags))  # type: ignore[arg-type]


def insert_version(tx: Connection, version: ModelVersion) -> None:
    """One that has its number already. Who calls holds the model's lock."""
    columns = {column.name: getattr(version, column.name) for column in model_versions.columns}
    tx.execute(insert(model_versions).values(**columns))
    key = {"name": version.name, "version": version.version}
    if version.tags:
        rows = [{**key, "key": tag, "value": text} for tag, text in sorted(version.tags.items())]
        tx.execute(insert(model_version_tags), rows)


def find_version(tx: Connection, name: str, version: int) -> ModelVersion | None:
    """Without tags and aliases; also one that was deleted."""
    c = model_versions.c
    row = tx.execute(select(model_versions).where(c.name == name, c.version == version)).first()
    return None if row is None else ModelVersion(**row._mapping)


def load_version(tx: Connection, name: str, version: int) -> ModelVersion:
    """With its aliases."""
    row = tx.execute(select(model_versions).where(_is(name, version))).first()
    if row is None:
        raise no_version(name, version)
    [found] = with_tags(tx, [row])
    return with_aliases(found, load_aliases(tx, [name])[name])


def load_latest(tx: Connection, names: Sequence[str]) -> list[ModelVersion]:
    """The latest of each stage, in the order of names and numbers."""
    c = model_versions.c
    newest = (
        select(c.name, func.max(c.version).label("version"))
        .where(c.name.in_(names), c.stage != Stage.DELETED)
        .group_by(c.name, c.stage)
        .subquery()
    )
    joined = and_(c.name == newest.c.name, c.version == newest.c.version)
    query = select(model_versions).join(newest, joined).order_by(c.name, c.version)
    return with_tags(tx, tx.execute(query).all())


def has_version(tx: Connection, name: str, version: int) -> None:
    """Raises NotFound."""
    if tx.execute(select(model_versions.c.version).where(_is(name, version))).first() is None:
        raise no_version(name, version)


def update_version(tx: Connection, name: str, version: int, **changes: Any) -> None:
    if tx.execute(update(model_versions).where(_is(name, version)).values(**changes)).rowcount == 0:
        raise no_version(name, version)


def archive_others(tx: Connection, name: str, version: int, stage: Stage, *, at: float) -> None:
    c = model_versions.c
    others = and_(c.name == name, c.version != version, c.stage == stage)
    tx.execute(update(model_versions).where(others).values(stage=Stage.ARCHIVED, updated_at=at))


def redact_version(tx: Connection, name: str, version: int, *, at: float) -> None:
    """What is left of a version that was deleted: its number."""
    update_version(
        tx,
        name,
        version,
        stage=Stage.DELETED,
        description=None,
        source=f"{REDACTED}-SOURCE-PATH",
        location=None,
        run_id=f"{REDACTED}-RUN-ID",
        run_link=f"{REDACTED}-RUN-LINK",
        model_id=None,
        updated_at=at,
    )
    c = registered_model_aliases.c
    tx.execute(delete(registered_model_aliases).where(c.name == name, c.version == version))


def put_version_tag(tx: Connection, name: str, version: int, key: str, value: str) -> None:
    row = {"name": name, "version": version, "key": key, "value": value}
    insert_or_replace(tx, model_version_tags, row)


def delete_version_tag(tx: Connection, name: str, version: int, key: str) -> None:
    c = model_version_tags.c
    tx.execute(delete(model_version_tags).where(c.name == name, c.version == version, c.key == key))


def with_tags(tx: Connection, rows: Sequence[Row[Any]]) -> list[ModelVersion]:
    keys = [(row.name, row.version) for row in rows]
    tags: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    c = model_version_tags.c
    for start in range(0, len(keys), _AT_ONCE):
        query = select(model_version_tags).where(tuple_(c.name, c.version).in_(keys[start : start + _AT_ONCE]))
        for row in tx.execute(query.order_by(c.key)):
            tags[row.name, row.version][row.key] = row.value
    return [_version(row, tags[row.name, row.version]) for row in rows]


def with_aliases(version: ModelVersion, aliases: Mapping[str, int]) -> ModelVersion:
    return replace(version, aliases=[alias for alias, number in aliases.items() if number == version.version])


def no_model(name: str) -> NotFound:
    return NotFound(f"Registered Model with name={name} not found")


def no_version(name: str, version: int) -> NotFound:
    return NotFound(f"Model Version (name={name}, version={version}) not found")


def _is(name: str, version: int) -> Any:
    c = model_versions.c
    possible = version if -1 < version <= LARGEST_VERSION else -1  # no version has that number
    return and_(c.name == name, c.version == possible, c.stage != Stage.DELETED)


def _version(row: Row[Any], tags: Mapping[str, str]) -> ModelVersion:
    values: dict[str, Any] = {**row._mapping, "stage": Stage(row.stage)}
    return ModelVersion(**values, tags=tags)
