"""What MLflow's clients can do with runs; one transaction each. A run of Windlass's own is one of them: what clients
log to it is kept with it, but how far it has come is the controller's to say.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from sqlalchemy import Connection

from windlass.core.clock import Clock
from windlass.core.errors import InvalidInput, NotFound
from windlass.core.ids import RUN_ID
from windlass.db.database import Database
from windlass.db.grouping import GroupedWrites
from windlass.experiments import catalogue, history, inputs, modelstore, runstore
from windlass.experiments.history import HistoryPoint
from windlass.experiments.locations import run_location
from windlass.experiments.naming import random_name
from windlass.experiments.rules import (
    check_batch,
    check_dataset,
    check_max_results,
    check_metric,
    check_metrics,
    check_run_id,
    checked_param,
    checked_tag,
    experiment_number,
)
from windlass.experiments.types import (
    RUN_NAME,
    DatasetInput,
    Metric,
    ModelOutput,
    NewRun,
    Pair,
    RunInfo,
    RunStatus,
    Stage,
    TrackedRun,
    View,
)
from windlass.tracking.blocks import Logged, blocks_of_columns
from windlass.tracking.store import Packed, lock, log_packed, packed

_MODELS = "mlflow.log-model.history"


class OwnTags(Protocol):
    """Told of tags that clients set (None: removed) on runs of Windlass's own."""

    def __call__(self, tx: Connection, run_id: str, tags: Mapping[str, str | None]) -> None: ...


class OwnValues(Protocol):
    """Told of values that clients log to runs of Windlass's own."""

    def __call__(self, tx: Connection, run_id: str, values: Sequence[Logged], *, now: float) -> None: ...


class TrackedRunService:
    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        own_tags: OwnTags | None = None,
        own_values: OwnValues | None = None,
        cut_values: bool = True,
    ) -> None:
        """`cut_values`: those of params and tags that are too long, rather than refusing them."""
        self._db = db
        self._clock = clock
        self._own_tags = own_tags
        self._own_values = own_values
        self._cut = cut_values
        self._writes = GroupedWrites(db)

    # ---- runs --------------------------------------------------------------------------------------------------

    def create(self, new: NewRun) -> TrackedRun:
        number = experiment_number(new.experiment_id)
        named = dict(new.tags).get(RUN_NAME, "")
        if new.name and named and new.name != named:
            raise InvalidInput(
                "Both 'run_name' argument and 'mlflow.runName' tag are specified, but with different values"
                f" (run_name='{new.name}', mlflow.runName='{named}')."
            )
        name = new.name or named or random_name()
        tags = list(new.tags) if named else [*new.tags, Pair(RUN_NAME, name)]
        run_id = uuid.uuid4().hex

        def write(tx: Connection) -> RunInfo:
            experiment = catalogue.load_active(tx, number)
            info = RunInfo(
                id=run_id,
                experiment_id=number,
                name=name,
                user=new.user,
                status=RunStatus.RUNNING,
                start_ms=new.start_ms,
                end_ms=None,
                stage=Stage.ACTIVE,
                artifact_uri=run_location(experiment.artifact_location, run_id),
            )
            runstore.insert_run(tx, info, (), tags)
            return info

        info = self._writes.write(write, key=run_id)
        return TrackedRun(info=info, tags=[Pair(key, value) for key, value in dict(tags).items()])

    def adopt(self, given: RunInfo) -> tuple[RunInfo, bool]:
        """Take in a run that another server has kept, under its id, and whether it was new here; one that is here is
        brought up to date. Its artifacts belong where its experiment has them."""
        if _is_own(given.id):
            raise InvalidInput(f"'{given.id}' is an id of Windlass's own runs, which come by being submitted")

        def write(tx: Connection) -> tuple[RunInfo, bool]:
            experiment = catalogue.load_active(tx, given.experiment_id)
            info = replace(given, artifact_uri=run_location(experiment.artifact_location, given.id))
            if runstore.put_new_run(tx, info):
                return info, True
            held = runstore.load_active(tx, given.id)
            changes = {"status": given.status, "start_ms": given.start_ms, "end_ms": given.end_ms}
            runstore.update_run(tx, given.id, name=given.name, user=given.user, **changes)
            return replace(given, experiment_id=held.experiment_id, artifact_uri=held.artifact_uri), False

        return self._writes.write(write, key=given.id)

    def get(self, run_id: str) -> TrackedRun:
        with self._db.read() as tx:
            return runstore.load_run(tx, run_id)

    def update(
        self, run_id: str, *, status: RunStatus | None = None, end_ms: int | None = None, name: str = ""
    ) -> RunInfo:
        given: dict[str, Any] = {"status": status, "end_ms": end_ms}
        changes = {} if _is_own(run_id) else {key: value for key, value in given.items() if value is not None}

        def write(tx: Connection) -> RunInfo:
            runstore.load_active(tx, run_id)
            runstore.update_run(tx, run_id, **changes)
            if name:
                self._put_tags(tx, run_id, [Pair(RUN_NAME, name)])
            return runstore.load_info(tx, run_id)

        return self._writes.write(write, key=run_id)

    def delete(self, run_id: str) -> None:
        self._change_stage(run_id, Stage.DELETED, int(self._clock.now() * 1000))

    def restore(self, run_id: str) -> None:
        self._change_stage(run_id, Stage.ACTIVE, None)

    def search(
        self,
        *,
        experiment_ids: Sequence[str],
        filter: str | None,
        order: Sequence[str],
        view: View,
        most: int,
        token: str | None,
    ) -> tuple[list[TrackedRun], str | None]:
        check_max_results(most)
        numbers = [experiment_number(one) for one in experiment_ids]
        with self._db.read() as tx:
            return runstore.search_runs(
                tx, experiments=numbers, filter=filter, order=order, view=view, most=most, token=token
            )

    # ---- what is logged ----------------------------------------------------------------------------------------

    def log_metric(self, run_id: str, metric: Metric) -> None:
        check_metric(metric)
        points = _packed([metric])
        self._log(run_id, lambda tx: self._put_metrics(tx, run_id, [metric], points))

    def log_param(self, run_id: str, param: Pair) -> None:
        param = checked_param(param, cut=self._cut)

        def write(tx: Connection) -> None:
            for given, held in runstore.put_params(tx, run_id, [param]):
                raise InvalidInput(
                    f"Changing param values is not allowed. Param with key='{given.key}' was already logged with"
                    f" value='{held}' for run ID='{run_id}'. Attempted logging new value '{given.value}'."
                )

        self._log(run_id, write)

    def set_tag(self, run_id: str, tag: Pair) -> None:
        tag = checked_tag(tag, cut=self._cut)
        self._log(run_id, lambda tx: self._put_tags(tx, run_id, [tag]))

    def delete_tag(self, run_id: str, key: str) -> None:
        with self._db.write() as tx:
            runstore.load_active(tx, run_id)
            if not runstore.delete_tag(tx, run_id, key):
                raise NotFound(f"No tag with name: {key} in run with id {run_id}")
            if self._own_tags and _is_own(run_id):
                self._own_tags(tx, run_id, {key: None})

    def log_batch(self, run_id: str, metrics: Sequence[Metric], params: Sequence[Pair], tags: Sequence[Pair]) -> None:
        """All of it or nothing."""
        check_run_id(run_id)
        check_metrics(metrics)
        params = [checked_param(param, f"params[{number}]", cut=self._cut) for number, param in enumerate(params)]
        tags = [checked_tag(tag, f"tags[{number}]", cut=self._cut) for number, tag in enumerate(tags)]
        check_batch(metrics, params, tags)
        points = _packed(metrics) if metrics else None

        def write(tx: Connection) -> None:
            if changed := runstore.put_params(tx, run_id, params):
                shown = [{"key": new.key, "old_value": old, "new_value": new.value} for new, old in changed]
                raise InvalidInput(
                    f"Changing param values is not allowed. Params were already logged='{shown}' for run ID='{run_id}'."
                )
            if points is not None:
                self._put_metrics(tx, run_id, metrics, points)
            self._put_tags(tx, run_id, tags)

        self._log(run_id, write)

    def log_inputs(self, run_id: str, datasets: Sequence[DatasetInput], models: Sequence[str]) -> None:
        check_run_id(run_id)
        for one in datasets:
            check_dataset(one)
        with self._db.write() as tx:
            info = runstore.load_active(tx, run_id)
            inputs.put_inputs(tx, info.experiment_id, run_id, datasets)
            inputs.put_models(tx, run_id, "input", [ModelOutput(model_id, 0) for model_id in models])

    def log_outputs(self, run_id: str, models: Sequence[ModelOutput]) -> None:
        with self._db.write() as tx:
            runstore.load_active(tx, run_id)
            inputs.put_models(tx, run_id, "output", models)

    def log_model(self, run_id: str, described: Mapping[str, Any]) -> None:
        """Old clients keep what is known of their models in a tag, a list that grows."""
        with self._db.write() as tx:
            runstore.load_active(tx, run_id)
            before = runstore.load_tag(tx, run_id, _MODELS)
            known = json.loads(before) if before else []
            tag = checked_tag(Pair(_MODELS, json.dumps([*known, described])))
            runstore.put_tags(tx, run_id, [tag])

    # ---- histories ---------------------------------------------------------------------------------------------

    def history(
        self, run_id: str, key: str, *, most: int | None, token: str | None
    ) -> tuple[list[HistoryPoint], str | None]:
        with self._db.read() as tx:
            return history.load_page(tx, run_id, key, most=most, token=token)

    def all_points(self, run_id: str, keys: Sequence[str]) -> dict[str, list[HistoryPoint]]:
        with self._db.read() as tx:
            runstore.load_info(tx, run_id)
            return history.load_many(tx, run_id, keys)

    def histories(self, run_ids: Sequence[str], key: str, *, most: int) -> list[HistoryPoint]:
        with self._db.read() as tx:
            return history.load_bulk(tx, run_ids, key, most=most)

    def sampled(
        self, run_ids: Sequence[str], key: str, *, steps: tuple[int, int] | None, most: int
    ) -> list[HistoryPoint]:
        with self._db.read() as tx:
            return history.load_interval(tx, run_ids, key, steps=steps, most=most)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _log(self, run_id: str, deed: Callable[[Connection], None]) -> None:
        """Together with what other clients log at the same moment: each waits for the disk, and one wait does."""

        def write(tx: Connection) -> None:
            runstore.load_active(tx, run_id)
            deed(tx)

        self._writes.write(write, key=run_id)

    def _put_metrics(self, tx: Connection, run_id: str, metrics: Sequence[Metric], points: Packed) -> None:
        if any(metric.model_id for metric in metrics):
            modelstore.put_metrics(tx, run_id, metrics)
        log_packed(tx, run_id, points)
        if self._own_values and _is_own(run_id):
            logged = [Logged(one.key, one.value, one.at_ms / 1000, one.step) for one in metrics]
            self._own_values(tx, run_id, logged, now=self._clock.now())

    def _put_tags(self, tx: Connection, run_id: str, tags: Sequence[Pair]) -> None:
        if not tags:
            return
        if self._own_tags and _is_own(run_id):
            # What the controller locks of a run too, in its order: points, the run, its other face.
            lock(tx, run_id)
            self._own_tags(tx, run_id, dict(tags))
        runstore.put_tags(tx, run_id, tags)

    def _change_stage(self, run_id: str, stage: Stage, deleted_ms: int | None) -> None:
        with self._db.write() as tx:
            runstore.load_info(tx, run_id)
            runstore.update_run(tx, run_id, stage=stage, deleted_ms=deleted_ms)


def _packed(metrics: Sequence[Metric]) -> Packed:
    names, values, at_ms, steps, *_ = zip(*metrics, strict=True)
    return packed(blocks_of_columns(names, values, [at / 1000 for at in at_ms], steps))


def _is_own(run_id: str) -> bool:
    return RUN_ID.match(run_id) is not None
