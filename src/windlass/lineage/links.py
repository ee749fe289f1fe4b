"""Links between things, read from the tables of those that own them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, false, or_, select, tuple_

from windlass.checkpoints.tables import checkpoints
from windlass.experiments.tables import input_datasets, logged_models, run_inputs, run_models, tracked_runs
from windlass.lineage.walk import Edge, Key, dataset_key, dataset_names
from windlass.registry.tables import model_versions
from windlass.runs.states import state_of
from windlass.runs.tables import runs
from windlass.wire.lineage import Thing, ThingKind

MOST_LINKS = 2_000  # of one kind at once: more than is ever shown
MOST_CHECKPOINTS = 3  # of a run: the newest; the catalogue has all


class DatabaseLinks:
    def __init__(self, tx: Connection) -> None:
        self._tx = tx

    def sources(self, keys: Sequence[Key]) -> Iterator[Edge]:
        ids = _by_kind(keys)
        yield from self._data(run_inputs.c.run_id.in_(ids[ThingKind.RUN]))
        yield from self._copies(runs.c.id.in_(ids[ThingKind.RUN]))
        yield from self._models_read(run_models.c.run_id.in_(ids[ThingKind.RUN]))
        yield from self._models_made(logged_models.c.id.in_(ids[ThingKind.MODEL]))
        yield from self._saved(checkpoints.c.id.in_(ids[ThingKind.CHECKPOINT]))
        yield from self._versions(_is_one_of(ids[ThingKind.VERSION]))

    def targets(self, keys: Sequence[Key]) -> Iterator[Edge]:
        ids = _by_kind(keys)
        yield from self._data(_is_dataset(ids[ThingKind.DATASET]))
        yield from self._copies(runs.c.clone_of.in_(ids[ThingKind.RUN]))
        yield from self._models_read(run_models.c.model_id.in_(ids[ThingKind.MODEL]))
        yield from self._models_made(logged_models.c.source_run_id.in_(ids[ThingKind.RUN]))
        for run_id in ids[ThingKind.RUN]:
            yield from self._saved(checkpoints.c.run_id == run_id, most=MOST_CHECKPOINTS)
        of_runs = model_versions.c.run_id.in_(ids[ThingKind.RUN])
        yield from self._versions(or_(of_runs, model_versions.c.model_id.in_(ids[ThingKind.MODEL])))

    def _data(self, mine: ColumnElement[bool]) -> Iterator[Edge]:
        data = input_datasets.c
        joined = run_inputs.join(input_datasets, run_inputs.c.dataset_id == data.id)
        for row in self._rows(select(data.name, data.digest, run_inputs.c.run_id).select_from(joined).where(mine)):
            yield Edge(dataset_key(row.name, row.digest), Key(ThingKind.RUN, row.run_id), "read by")

    def _copies(self, mine: ColumnElement[bool]) -> Iterator[Edge]:
        for row in self._rows(select(runs.c.clone_of, runs.c.id).where(mine, runs.c.clone_of.is_not(None))):
            yield Edge(Key(ThingKind.RUN, row[0]), Key(ThingKind.RUN, row[1]), "copied as")

    def _models_read(self, mine: ColumnElement[bool]) -> Iterator[Edge]:
        """Not what the run itself has made: MLflow's client says that a run reads whatever it logs a metric of."""
        model, read = logged_models.c, run_models.c
        made_it = and_(model.id == read.model_id, model.source_run_id == read.run_id)
        query = select(read.model_id, read.run_id).where(mine, read.direction == "input", ~exists().where(made_it))
        for row in self._rows(query):
            yield Edge(Key(ThingKind.MODEL, row[0]), Key(ThingKind.RUN, row[1]), "read by")

    def _models_made(self, mine: ColumnElement[bool]) -> Iterator[Edge]:
        made = logged_models.c.source_run_id.is_not(None)
        for row in self._rows(select(logged_models.c.source_run_id, logged_models.c.id).where(mine, made)):
            yield Edge(Key(ThingKind.RUN, row[0]), Key(ThingKind.MODEL, row[1]), "logged")

    def _saved(self, mine: ColumnElement[bool], most: int | None = None) -> Iterator[Edge]:
        query = select(checkpoints.c.run_id, checkpoints.c.id).where(mine).order_by(checkpoints.c.step.desc())
        if most is not None:
            query = query.where(checkpoints.c.state == "available")
        for row in self._rows(query, most or MOST_LINKS):
            yield Edge(Key(ThingKind.RUN, row[0]), Key(ThingKind.CHECKPOINT, row[1]), "saved")

    def _versions(self, mine: ColumnElement[bool]) -> Iterator[Edge]:
        """From the logged model where there is one: that came from the run."""
        columns = (model_versions.c.name, model_versions.c.version, model_versions.c.run_id, model_versions.c.model_id)
        for name, version, run_id, model_id in self._rows(select(*columns).where(mine)):
            source = Key(ThingKind.MODEL, model_id) if model_id else Key(ThingKind.RUN, run_id) if run_id else None
            if source is not None:
                yield Edge(source, Key(ThingKind.VERSION, f"{name}/{version}"), "registered as")

    def _rows(self, query: Select[Any], most: int = MOST_LINKS) -> Iterable[Any]:
        return self._tx.execute(query.limit(most)).all()


def load_things(tx: Connection, keys: Sequence[Key]) -> list[Thing]:
    """In their order, with what people want to know of each."""
    ids = _by_kind(keys)
    told: dict[Key, tuple[str, str]] = {}
    for row in tx.execute(select(tracked_runs).where(tracked_runs.c.id.in_(ids[ThingKind.RUN]))):
        told[Key(ThingKind.RUN, row.id)] = (row.name, state_of(row.status))
    for row in tx.execute(select(input_datasets).where(_is_dataset(ids[ThingKind.DATASET])).order_by("id")):
        told[dataset_key(row.name, row.digest)] = (f"{row.name}@{row.digest}", f"source: {row.source_type}")
    for row in tx.execute(select(checkpoints).where(checkpoints.c.id.in_(ids[ThingKind.CHECKPOINT]))):
        told[Key(ThingKind.CHECKPOINT, row.id)] = (f"step {row.step:,}", row.state)
    for row in tx.execute(select(logged_models).where(logged_models.c.id.in_(ids[ThingKind.MODEL]))):
        told[Key(ThingKind.MODEL, row.id)] = (row.name, row.id)
    for row in tx.execute(select(model_versions).where(_is_one_of(ids[ThingKind.VERSION]))):
        stage = "" if row.stage in (None, "", "None") else row.stage
        told[Key(ThingKind.VERSION, f"{row.name}/{row.version}")] = (f"{row.name}/{row.version}", stage)
    return [
        Thing(key=str(key), kind=key.kind, title=told.get(key, (key.id, ""))[0], detail=told.get(key, ("", "gone"))[1])
        for key in keys
    ]


def _is_one_of(ids: Sequence[str]) -> ColumnElement[bool]:
    pairs = [(name, int(version)) for name, _, version in (one.rpartition("/") for one in ids)]
    return or_(
        false(), *((model_versions.c.name == name) & (model_versions.c.version == version) for name, version in pairs)
    )


def _is_dataset(ids: Sequence[str]) -> ColumnElement[bool]:
    pairs = [pair for one in ids for pair in dataset_names(one)]
    return tuple_(input_datasets.c.name, input_datasets.c.digest).in_(pairs)


def _by_kind(keys: Sequence[Key]) -> dict[ThingKind, list[str]]:
    return {kind: [key.id for key in keys if key.kind is kind] for kind in ThingKind}
