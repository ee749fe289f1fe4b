"""What can be done with logged models; one transaction each."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from windlass.core import marks
from windlass.core.clock import Clock
from windlass.core.errors import Gone, InvalidInput, NotFound
from windlass.db.database import Database
from windlass.experiments import catalogue, modelstore
from windlass.experiments.locations import model_location
from windlass.experiments.modelsearch import STATUSES, ModelSearch, offset_in, token_of
from windlass.experiments.naming import random_name
from windlass.experiments.rules import check_model_name, experiment_number
from windlass.experiments.types import LoggedModel, Metric, ModelMetric, NewModel, Pair, Stage


class LoggedModelService:
    def __init__(self, *, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def create(self, new: NewModel) -> LoggedModel:
        check_model_name(new.name)
        number, now_ms = experiment_number(new.experiment_id), self._now_ms()
        with self._db.write() as tx:
            experiment = catalogue.load_active(tx, number)
            model_id = f"m-{uuid.uuid4().hex}"
            model = LoggedModel(
                id=model_id,
                experiment_id=number,
                name=new.name or random_name(),
                artifact_location=model_location(experiment.artifact_location, model_id),
                created_ms=now_ms,
                updated_ms=now_ms,
                status=STATUSES["PENDING"],
                stage=Stage.ACTIVE,
                model_type=new.model_type,
                source_run_id=new.source_run_id,
                status_message=None,
                params=new.params,
                tags=new.tags,
            )
            modelstore.insert_model(tx, model)
        return model

    def adopt(self, given: LoggedModel) -> tuple[str, bool]:
        """Take in a model that another server has kept, under its id; of one that is here, what has changed there
        since. Where its files belong, and whether it was new. Raises Gone for one that was deleted here."""
        with self._db.write() as tx:
            experiment = catalogue.load_active(tx, given.experiment_id)
            model = replace(given, artifact_location=model_location(experiment.artifact_location, given.id))
            created = modelstore.put_new_model(tx, model)
            if not created:
                model = modelstore.load_model(tx, given.id, deleted_too=True)
                if model.stage == Stage.DELETED:
                    raise Gone(f"logged model {given.id} was deleted here")
                if given.updated_ms > model.updated_ms:
                    changes = {"status": given.status, "status_message": given.status_message}
                    modelstore.update_model(tx, given.id, now_ms=given.updated_ms, **changes)
            modelstore.put_params(tx, given.id, given.params)
            modelstore.put_tags(tx, given.id, _changed_tags(given, model if not created else None))
            for run_id, points in _by_run(given.metrics).items():
                modelstore.put_metrics(tx, run_id, points)
        return model.artifact_location, created

    def get(self, model_id: str, *, deleted_too: bool = False) -> LoggedModel:
        with self._db.read() as tx:
            return modelstore.load_model(tx, model_id, deleted_too=deleted_too)

    def finalize(self, model_id: str, status: int) -> LoggedModel:
        if status not in STATUSES.values():
            raise InvalidInput(f"Unknown model status: {status}; known: {', '.join(STATUSES)}")
        return self._change(model_id, status=status)

    def delete(self, model_id: str) -> None:
        self._change(model_id, stage=Stage.DELETED)

    def log_params(self, model_id: str, params: Sequence[Pair]) -> None:
        with self._db.write() as tx:
            modelstore.load_model(tx, model_id, deleted_too=True)
            modelstore.put_params(tx, model_id, params)

    def set_tags(self, model_id: str, tags: Sequence[Pair]) -> LoggedModel:
        with self._db.write() as tx:
            modelstore.load_model(tx, model_id, deleted_too=True)
            modelstore.put_tags(tx, model_id, tags)
            return modelstore.load_model(tx, model_id, deleted_too=True)

    def delete_tag(self, model_id: str, key: str) -> None:
        with self._db.write() as tx:
            modelstore.load_model(tx, model_id, deleted_too=True)
            if not modelstore.delete_tag(tx, model_id, key):
                raise NotFound(f"No tag with key {key!r} found for model with ID {model_id!r}.")

    def search(self, wanted: ModelSearch, *, most: int, token: str | None) -> tuple[list[LoggedModel], str | None]:
        if any(not dataset.name for dataset in wanted.datasets):
            raise InvalidInput("`dataset_name` in the `datasets` clause must be specified.")
        offset = offset_in(token, wanted)
        numbers = [experiment_number(one) for one in wanted.experiment_ids]
        with self._db.read() as tx:
            found, more = modelstore.search_models(tx, wanted, numbers, offset=offset, most=most)
        return found, token_of(wanted, offset + most) if more else None

    def _change(self, model_id: str, **changes: object) -> LoggedModel:
        with self._db.write() as tx:
            modelstore.load_model(tx, model_id, deleted_too=True)
            modelstore.update_model(tx, model_id, now_ms=self._now_ms(), **changes)
            return modelstore.load_model(tx, model_id, deleted_too=True)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


def _changed_tags(given: LoggedModel, held: LoggedModel | None) -> list[Pair]:
    """And a mark of them: tags of logged models do not change when they were last changed."""
    there = {tag.key: tag.value for tag in given.tags}
    here = {tag.key: tag.value for tag in held.tags} if held else {}
    mark = {marks.MARK_TAG: marks.mark_of(marks.tag_facts(there))} if there else {}
    return [Pair(key, value) for key, value in {**marks.changed_tags(there, here), **mark}.items()]


def _by_run(metrics: Sequence[ModelMetric]) -> dict[str, list[Metric]]:
    found: dict[str, list[Metric]] = {}
    for one in sorted(metrics, key=lambda one: one.run_id):  # writers that meet go through runs in one order
        point = Metric(one.key, one.value, one.at_ms, one.step, one.model_id, one.dataset_name, one.dataset_digest)
        found.setdefault(one.run_id, []).append(point)
    return found
