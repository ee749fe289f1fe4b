"""Reading and writing runs as MLflow knows them: their heads, params, tags and latest metrics. Functions over an open
transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, func, insert, select, update

from windlass.core.errors import InvalidInput, NotFound
from windlass.core.paging import offset_of, page_token
from windlass.db.insertion import insert_missing, insert_new, insert_or_replace_all
from windlass.experiments.runcontents import fill_runs
from windlass.experiments.runsearch import leading_metric, search_query
from windlass.experiments.tables import run_params, run_tags, tracked_runs
from windlass.experiments.types import RUN_NAME, Pair, RunInfo, Stage, TrackedRun, View
from windlass.tracking.tables import summaries

_BY_ID = select(tracked_runs).where(tracked_runs.c.id == bindparam("run_id"))  # asked with every point that is logged
_COUNT = select(func.count()).select_from(
    select(tracked_runs.c.id)
    .where(tracked_runs.c.experiment_id.in_(bindparam("experiments", expanding=True)))
    .limit(bindparam("most"))
    .subquery()
)
_VALUES = select(summaries.c.last).where(summaries.c.name == bindparam("name"), summaries.c.last.is_not(None))
# The value at that place among all of a metric, by whether they ascend.
_AT_PLACE = {
    ascending: _VALUES.order_by(by).offset(bindparam("place")).limit(1)
    for ascending, by in ((True, summaries.c.last.asc()), (False, summaries.c.last.desc()))
}
_MOST_COUNTED = 4_000  # runs of an experiment, of which half are looked at
_MOST_NEEDED = 1_000_000
_WORTH_A_TRY = 200  # all of fewer are looked at in no time


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
    offset = offset_of(token)

    def rows_of(before: float | None = None) -> Sequence[Any]:
        query = search_query(
            experiments=experiments, filter=filter, order=order, view=view, dialect=tx.dialect.name, before=before
        )
        return tx.execute(query.offset(offset).limit(most + 1)).all()

    rows: Sequence[Any] = ()
    if (before := _load_boundary(tx, experiments, order, offset + most)) is not None:
        rows = rows_of(before)
    if len(rows) <= most:
        rows = rows_of()
    following = page_token(offset + most) if len(rows) > most else None
    return fill_runs(tx, [_info(row) for row in rows[:most]]), following


def _load_boundary(tx: Connection, experiments: Sequence[int], order: Sequence[str], needed: int) -> float | None:
    """Where runs are ordered by a metric: a value that few enough of all runs come before, half as many as these
    experiments have. A page is mostly found among them, without looking at every run; where it is not, little was lost.
    None where it is not worth a try."""
    metric = leading_metric(order)
    if metric is None or needed > _MOST_NEEDED:
        return None
    counted = {"experiments": list(experiments), "most": max(_MOST_COUNTED, 8 * needed)}
    place = tx.execute(_COUNT, counted).scalar_one() // 2
    if place < max(needed, _WORTH_A_TRY):
        return None
    key, ascending = metric
    found: float | None = tx.execute(_AT_PLACE[ascending], {"name": key, "place": place}).scalar()
    return found


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


def _rows(run_id: str, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """In the order of their keys, as writers that meet must have them; of several with one key the last counts."""
    return [{"run_id": run_id, "key": key, "value": value} for key, value in sorted(dict(pairs).items())]


def _pairs_of(tx: Connection, table: Table, run_id: str, keys: Sequence[str]) -> list[tuple[str, str]]:
    mine = (table.c.run_id == run_id, table.c.key.in_(list(keys)))
    return [(row.key, row.value) for row in tx.execute(select(table.c.key, table.c.value).where(*mine))]


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
