"""Reading and writing runs as MLflow knows them: their heads, params, tags and latest metrics. Functions over an open
transaction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update

from windlass.core.errors import InvalidInput, NotFound
from windlass.core.paging import offset_of, page_token
from windlass.db.insertion import insert_missing, insert_new, insert_or_replace_all
from windlass.experiments.inputs import load_inputs, load_models
from windlass.experiments.runsearch import search_query
from windlass.experiments.tables import run_params, run_tags, tracked_runs
from windlass.experiments.types import RUN_NAME, LatestMetric, Pair, RunInfo, Stage, TrackedRun, View
from windlass.tracking.tables import summaries

_BY_ID = select(tracked_runs).where(tracked_runs.c.id == bindparam("run_id"))  # asked with every point that is logged
_AT_ONCE = 5_000  # values in one statement; databases allow some ten thousand


def insert_run(tx: Connection, info: RunInfo, params: Sequence[Pair], tags: Sequence[Pair]) -> None:
    tx.execute(insert(tracked_runs).values(_head(info)))
    for table, pairs in ((run_params, params), (run_tags, tags)):
        if pairs:
            tx.execute(insert(table), _rows(info.id, pairs))


def put_new_run(tx: Connection, info: RunInfo) -> bool:
    """False if there is one with that id, which is left as it is."""
    return insert_new(tx, tracked_runs, _head(info))


def _head(info: RunInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "experiment_id": info.experiment_id,
        "name": info.name,
        "user": info.user,
        "status": info.status,
        "start_ms": info.start_ms,
        "end_ms": info.end_ms,
        "stage": info.stage,
        "artifact_uri": info.artifact_uri,
    }


def load_info(tx: Connection, run_id: str) -> RunInfo:
    """Raises NotFound."""
    row = tx.execute(_BY_ID, {"run_id": run_id}).first()
    if row is None:
        raise NotFound(f"Run with id={run_id} not found")
    return _info(row)


def load_active(tx: Connection, run_id: str) -> RunInfo:
    """Raises NotFound, and InvalidInput for a run that is deleted."""
    info = load_info(tx, run_id)
    if info.stage != Stage.ACTIVE:
        raise InvalidInput(f"The run {run_id} must be in the 'active' state. Current state is {info.stage}.")
    return info


def load_run(tx: Connection, run_id: str) -> TrackedRun:
    return fill_runs(tx, [load_info(tx, run_id)])[0]


def search_runs(
    tx: Connection,
    *,
    experiments: Sequence[int],
    filter: str | None,
    order: Sequence[str],
    view: View,
    most: int,
    token: str | None,
) -> tuple[list[TrackedRun], str | None]:
    query = search_query(experiments=experiments, filter=filter, order=order, view=view, dialect=tx.dialect.name)
    offset = offset_of(token)
    rows = tx.execute(query.offset(offset).limit(most + 1)).all()
    following = page_token(offset + most) if len(rows) > most else None
    return fill_runs(tx, [_info(row) for row in rows[:most]]), following


def fill_runs(tx: Connection, infos: Sequence[RunInfo]) -> list[TrackedRun]:
    """With everything that is kept of them."""
    ids = [info.id for info in infos]
    params, tags = _load_pairs(tx, run_params, ids), _load_pairs(tx, run_tags, ids)
    metrics, inputs, models = _load_metrics(tx, ids), load_inputs(tx, ids), load_models(tx, ids)
    return [
        TrackedRun(
            info=info,
            metrics=metrics.get(info.id, ()),
            params=params.get(info.id, ()),
            tags=tags.get(info.id, ()),
            datasets=inputs.get(info.id, ()),
            model_inputs=[model.model_id for direction, model in models.get(info.id, ()) if direction == "input"],
            model_outputs=[model for direction, model in models.get(info.id, ()) if direction == "output"],
        )
        for info in infos
    ]


def update_run(tx: Connection, run_id: str, **changes: Any) -> None:
    if changes:
        tx.execute(update(tracked_runs).where(tracked_runs.c.id == run_id).values(**changes))


def put_params(tx: Connection, run_id: str, params: Sequence[Pair]) -> list[tuple[Pair, str]]:
    """Those that have another value already, each with that value: a param is set once. The transaction is to be given
    up if there are any."""
    if not params:
        return []
    insert_missing(tx, run_params, _rows(run_id, params))
    held = dict(_pairs_of(tx, run_params, run_id, [param.key for param in params]))
    return [(param, held[param.key]) for param in params if held[param.key] != param.value]


def put_tags(tx: Connection, run_id: str, tags: Sequence[Pair]) -> None:
    """One of them may be the run's name."""
    insert_or_replace_all(tx, run_tags, _rows(run_id, tags))
    if name := dict(tags).get(RUN_NAME):
        update_run(tx, run_id, name=name)


def load_tag(tx: Connection, run_id: str, key: str) -> str | None:
    return dict(_pairs_of(tx, run_tags, run_id, [key])).get(key)


def delete_tag(tx: Connection, run_id: str, key: str) -> bool:
    """Whether there was one."""
    return tx.execute(delete(run_tags).where(run_tags.c.run_id == run_id, run_tags.c.key == key)).rowcount > 0


def in_parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(ids), _AT_ONCE):
        yield ids[begin : begin + _AT_ONCE]


def _rows(run_id: str, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """In the order of their keys, as writers that meet must have them; of several with one key the last counts."""
    return [{"run_id": run_id, "key": key, "value": value} for key, value in sorted(dict(pairs).items())]


def _pairs_of(tx: Connection, table: Table, run_id: str, keys: Sequence[str]) -> list[tuple[str, str]]:
    mine = (table.c.run_id == run_id, table.c.key.in_(list(keys)))
    return [(row.key, row.value) for row in tx.execute(select(table.c.key, table.c.value).where(*mine))]


def _load_pairs(tx: Connection, table: Table, ids: Sequence[str]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for some in in_parts(ids):
        # All at once: one by one takes several times as long.
        for run_id, key, value in tx.execute(select(table).where(table.c.run_id.in_(some))).all():
            found.setdefault(run_id, []).append(Pair(key, value))
    return found


def _load_metrics(tx: Connection, ids: Sequence[str]) -> dict[str, list[LatestMetric]]:
    """As `tracking.store.load_latest`, without an object for each of what may be a hundred thousand."""
    found: dict[str, list[LatestMetric]] = {}
    columns = (summaries.c.run_id, summaries.c.name, summaries.c.last, summaries.c.last_at, summaries.c.last_step)
    for some in in_parts(ids):
        rows = tx.execute(select(*columns).where(summaries.c.run_id.in_(some))).all()
        for run_id, name, last, at, step in rows:
            value = math.nan if last is None else last
            found.setdefault(run_id, []).append(LatestMetric(name, value, round((at or 0.0) * 1000), step or 0))
    return found


def _info(row: Any) -> RunInfo:
    return RunInfo(
        id=row.id,
        experiment_id=row.experiment_id,
        name=row.name,
        user=row.user,
        status=row.status,
        start_ms=row.start_ms,
        end_ms=row.end_ms,
        stage=row.stage,
        artifact_uri=row.artifact_uri,
    )
