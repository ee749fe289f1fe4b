"""What can be done with experiments; one transaction each."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.core.clock import Clock
from windlass.core.errors import AlreadyExists, InvalidTransition, NotFound
from windlass.db.database import Database
from windlass.experiments import catalogue, inputs
from windlass.experiments.locations import checked_location
from windlass.experiments.rules import (
    check_experiment_name,
    check_experiment_tag,
    check_max_results,
    check_views,
    experiment_number,
)
from windlass.experiments.types import DatasetSummary, Experiment, Pair, Stage, View


class ExperimentService:
    def __init__(self, *, db: Database, clock: Clock, root: str | None = None) -> None:
        """`root`: where experiments have their artifacts unless whoever makes one says otherwise."""
        self._db = db
        self._clock = clock
        self._root = root

    def begin(self) -> None:
        """Have the default experiment; a server does this when it starts."""
        with self._db.read() as tx:
            if catalogue.has_default(tx):
                return
        with self._db.write() as tx:
            catalogue.put_default(tx, now_ms=self._now_ms(), root=self._root)

    def create(self, name: str, location: str = "", tags: Sequence[Pair] = ()) -> int:
        check_views([tag.key for tag in tags])
        check_experiment_name(name)
        place = checked_location(location) if location else None
        for tag in tags:
            check_experiment_tag(tag)
        with self._db.write() as tx:
            number = catalogue.put_experiment(tx, name, place, tags, now_ms=self._now_ms(), root=self._root)
        if number is None:
            raise AlreadyExists(f"Experiment(name={name}) already exists.")
        return number

    def get(self, experiment_id: str) -> Experiment:
        with self._db.read() as tx:
            return catalogue.load_experiment(tx, experiment_number(experiment_id))

    def get_named(self, name: str) -> Experiment:
        with self._db.read() as tx:
            found = catalogue.load_named(tx, name)
        if found is None:
            raise NotFound(f"Could not find experiment with name '{name}'")
        return found

    def search(
        self, *, filter: str | None, order: Sequence[str], view: View, most: int, token: str | None
    ) -> tuple[list[Experiment], str | None]:
        check_max_results(most)
        with self._db.read() as tx:
            return catalogue.search_experiments(tx, filter=filter, order=order, view=view, most=most, token=token)

    def delete(self, experiment_id: str) -> None:
        self._change_stage(experiment_id, View.ACTIVE_ONLY, Stage.DELETED)

    def restore(self, experiment_id: str) -> None:
        self._change_stage(experiment_id, View.DELETED_ONLY, Stage.ACTIVE)

    def rename(self, experiment_id: str, name: str) -> None:
        check_experiment_name(name)
        number = experiment_number(experiment_id)
        with self._db.write() as tx:
            if catalogue.load_experiment(tx, number).stage != Stage.ACTIVE:
                raise InvalidTransition("Cannot rename a non-active experiment.")
            other = catalogue.load_named(tx, name)
            if other is not None and other.id != number:
                raise AlreadyExists(f"Experiment(name={name}) already exists.")
            catalogue.update_experiment(tx, number, now_ms=self._now_ms(), name=name)

    def set_tag(self, experiment_id: str, tag: Pair) -> None:
        check_experiment_tag(tag)
        number = experiment_number(experiment_id)
        with self._db.write() as tx:
            catalogue.load_active(tx, number)
            check_views({*(one.key for one in catalogue.load_experiment(tx, number).tags), tag.key}, number)
            catalogue.put_tags(tx, number, [tag])

    def delete_tag(self, experiment_id: str, key: str) -> None:
        number = experiment_number(experiment_id)
        with self._db.write() as tx:
            catalogue.load_active(tx, number)
            if not catalogue.delete_tag(tx, number, key):
                raise NotFound(f"No tag with name: {key} in experiment with id {experiment_id}")

    def datasets(self, experiment_ids: Sequence[str]) -> list[DatasetSummary]:
        numbers = [experiment_number(one) for one in experiment_ids]
        with self._db.read() as tx:
            return inputs.load_summaries(tx, numbers)

    def _change_stage(self, experiment_id: str, view: View, stage: Stage) -> None:
        number, now_ms = experiment_number(experiment_id), self._now_ms()
        with self._db.write() as tx:
            catalogue.load_experiment(tx, number, view)
            catalogue.update_experiment(tx, number, now_ms=now_ms, stage=stage)
            catalogue.mark_runs(tx, number, stage, now_ms=now_ms)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)
