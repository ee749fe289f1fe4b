"""Reading and writing experiments and their tags, over an open transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, select, update

from windlass.core.errors import InvalidInput, NotFound
from windlass.core.paging import offset_of, page_token
from windlass.db.insertion import insert_new, insert_or_replace_all
from windlass.experiments.experimentsearch import search_query
from windlass.experiments.locations import own_location
from windlass.experiments.tables import experiment_tags, experiments, tracked_runs
from windlass.experiments.types import Experiment, Pair, Stage, View

DEFAULT_ID = 0
DEFAULT_NAME = "Default"
DEFAULT_PROJECT = "default"


def put_default(tx: Connection, *, now_ms: int, root: str | None = None) -> None:
    values = {"id": DEFAULT_ID, "name": DEFAULT_NAME, "artifact_location": own_location(DEFAULT_ID, root)}
    insert_new(tx, experiments, {**values, **_fresh(now_ms)})


def has_default(tx: Connection) -> bool:
    return tx.execute(select(experiments.c.id).where(experiments.c.id == DEFAULT_ID)).first() is not None


def put_experiment(
    tx: Connection, name: str, location: str | None, tags: Sequence[Pair], *, now_ms: int, root: str | None = None
) -> int | None:
    """Its number; None if another one has that name. Without a location it gets a folder of `root`."""
    values = {"name": name, "artifact_location": location or "", **_fresh(now_ms)}
    if not insert_new(tx, experiments, values):
        return None
    number = int(tx.execute(select(experiments.c.id).where(experiments.c.name == name)).scalar_one())
    if not location:
        mine = update(experiments).where(experiments.c.id == number)
        tx.execute(mine.values(artifact_location=own_location(number, root)))
    put_tags(tx, number, tags)
    return number


def experiment_of_project(tx: Connection, project: str, *, now_ms: int) -> int:
    """Made when it is first needed."""
    if project in (DEFAULT_PROJECT, DEFAULT_NAME):
        return DEFAULT_ID
    return experiment_named(tx, project, now_ms=now_ms)


def experiment_named(tx: Connection, name: str, *, now_ms: int) -> int:
    """Made when it is first needed."""
    number = _number_of(tx, name)
    if number is None:
        number = put_experiment(tx, name, None, (), now_ms=now_ms)
    if number is None:  # somebody else has made it just now
        number = _number_of(tx, name)
    assert number is not None
    return number


def load_experiment(tx: Connection, number: int, view: View = View.ALL) -> Experiment:
    """Raises NotFound."""
    row = tx.execute(select(experiments).where(experiments.c.id == number)).first()
    if row is None or row.stage not in view.stages:
        raise NotFound(f"No Experiment with id={number} exists")
    return _with_tags(tx, [row])[0]


def load_active(tx: Connection, number: int) -> Experiment:
    """Without its tags. Raises NotFound, and InvalidInput for one that is deleted."""
    row = tx.execute(select(experiments).where(experiments.c.id == number)).first()
    if row is None:
        raise NotFound(f"No Experiment with id={number} exists")
    if row.stage != Stage.ACTIVE:
        raise InvalidInput(f"The experiment {number} must be in the 'active' state. Current state is {row.stage}.")
    return _experiment(row, ())


def load_named(tx: Connection, name: str) -> Experiment | None:
    row = tx.execute(select(experiments).where(experiments.c.name == name)).first()
    return _with_tags(tx, [row])[0] if row else None


def search_experiments(
    tx: Connection, *, filter: str | None, order: Sequence[str], view: View, most: int, token: str | None
) -> tuple[list[Experiment], str | None]:
    query = search_query(filter=filter, order=order, view=view, dialect=tx.dialect.name)
    offset = offset_of(token)
    rows = tx.execute(query.offset(offset).limit(most + 1)).all()
    following = page_token(offset + most) if len(rows) > most else None
    return _with_tags(tx, rows[:most]), following


def update_experiment(tx: Connection, number: int, *, now_ms: int, **changes: Any) -> None:
    tx.execute(update(experiments).where(experiments.c.id == number).values(updated_ms=now_ms, **changes))


def mark_runs(tx: Connection, number: int, stage: Stage, *, now_ms: int) -> None:
    """All runs of an experiment go and come with it."""
    deleted_ms = now_ms if stage is Stage.DELETED else None
    of_experiment = tracked_runs.c.experiment_id == number
    tx.execute(update(tracked_runs).where(of_experiment).values(stage=stage, deleted_ms=deleted_ms))


def put_tags(tx: Connection, number: int, tags: Sequence[Pair]) -> None:
    rows = [{"experiment_id": number, "key": key, "value": value} for key, value in sorted(dict(tags).items())]
    insert_or_replace_all(tx, experiment_tags, rows)


def delete_tag(tx: Connection, number: int, key: str) -> bool:
    """Whether there was one."""
    mine = (experiment_tags.c.experiment_id == number, experiment_tags.c.key == key)
    return tx.execute(delete(experiment_tags).where(*mine)).rowcount > 0


def _number_of(tx: Connection, name: str) -> int | None:
    number = tx.execute(select(experiments.c.id).where(experiments.c.name == name)).scalar()
    return None if number is None else int(number)


def _fresh(now_ms: int) -> dict[str, Any]:
    return {"stage": Stage.ACTIVE, "created_ms": now_ms, "updated_ms": now_ms}


def _with_tags(tx: Connection, rows: Sequence[Any]) -> list[Experiment]:
    tags: dict[int, list[Pair]] = {}
    for start in range(0, len(rows), 5_000):
        numbers = [row.id for row in rows[start : start + 5_000]]
        held = select(experiment_tags).where(experiment_tags.c.experiment_id.in_(numbers))
        for number, key, value in tx.execute(held):
            tags.setdefault(number, []).append(Pair(key, value))
    return [_experiment(row, tags.get(row.id, ())) for row in rows]


def _experiment(row: Any, tags: Sequence[Pair]) -> Experiment:
    return Experiment(
        id=row.id,
        name=row.name,
        artifact_location=row.artifact_location,
        stage=row.stage,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
        tags=tags,
    )
