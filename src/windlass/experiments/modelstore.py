"""Reading and writing logged models, over an open transaction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, update

from windlass.core.errors import NotFound
from windlass.db.insertion import insert_missing, insert_new, insert_or_replace_all
from windlass.experiments.modelsearch import ModelSearch, search_query
from windlass.experiments.tables import logged_model_metrics, logged_model_params, logged_model_tags, logged_models
from windlass.experiments.types import LoggedModel, Metric, ModelMetric, Pair, Stage

_AT_ONCE = 5_000
_PARTS = ("params", "tags", "metrics")


def insert_model(tx: Connection, model: LoggedModel) -> None:
    tx.execute(insert(logged_models).values(_head(model)))
    put_params(tx, model.id, model.params)
    put_tags(tx, model.id, model.tags)


def put_new_model(tx: Connection, model: LoggedModel) -> bool:
    """Without its params, tags and metrics. False if there is one with that id, which is left as it is."""
    return insert_new(tx, logged_models, _head(model))


def _head(model: LoggedModel) -> dict[str, Any]:
    return {key: value for key, value in asdict(model).items() if key not in _PARTS}


def load_model(tx: Connection, model_id: str, *, deleted_too: bool = False) -> LoggedModel:
    """Raises NotFound."""
    row = tx.execute(select(logged_models).where(logged_models.c.id == model_id)).first()
    if row is None or (row.stage == Stage.DELETED and not deleted_too):
        raise NotFound(f"Logged model with ID '{model_id}' not found.")
    return _filled(tx, [row])[0]


def check_models(tx: Connection, model_ids: Sequence[str]) -> None:
    """Raises NotFound for the first one that is not there."""
    wanted = sorted(set(model_ids))
    known = set(tx.execute(select(logged_models.c.id).where(logged_models.c.id.in_(wanted))).scalars())
    if absent := [model_id for model_id in wanted if model_id not in known]:
        raise NotFound(f"Logged model with ID '{absent[0]}' not found.")


def search_models(
    tx: Connection, wanted: ModelSearch, experiments: Sequence[int], *, offset: int, most: int
) -> tuple[list[LoggedModel], bool]:
    """And whether there are more."""
    query = search_query(wanted, experiments, tx.dialect.name)
    rows = tx.execute(query.offset(offset).limit(most + 1)).all()
    return _filled(tx, rows[:most]), len(rows) > most


def update_model(tx: Connection, model_id: str, *, now_ms: int, **changes: Any) -> None:
    tx.execute(update(logged_models).where(logged_models.c.id == model_id).values(updated_ms=now_ms, **changes))


def put_params(tx: Connection, model_id: str, params: Sequence[Pair]) -> None:
    insert_missing(tx, logged_model_params, _rows(model_id, params))


def put_tags(tx: Connection, model_id: str, tags: Sequence[Pair]) -> None:
    insert_or_replace_all(tx, logged_model_tags, _rows(model_id, tags))


def delete_tag(tx: Connection, model_id: str, key: str) -> bool:
    """Whether there was one."""
    mine = (logged_model_tags.c.model_id == model_id, logged_model_tags.c.key == key)
    return tx.execute(delete(logged_model_tags).where(*mine)).rowcount > 0


def put_metrics(tx: Connection, run_id: str, metrics: Sequence[Metric]) -> None:
    """Those that belong to a model. A point that is there already stays as it is."""
    rows = {
        (one.model_id, one.key, one.at_ms, one.step): {
            "model_id": one.model_id,
            "name": one.key,
            "at_ms": one.at_ms,
            "step": one.step,
            "run_id": run_id,
            "value": None if math.isnan(one.value) else one.value,
            "dataset_name": one.dataset_name,
            "dataset_digest": one.dataset_digest,
        }
        for one in metrics
        if one.model_id is not None
    }
    if rows:
        check_models(tx, [str(model_id) for model_id, *_ in rows])
        insert_missing(tx, logged_model_metrics, [row for _, row in sorted(rows.items())])


def _rows(model_id: str, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    return [{"model_id": model_id, "key": key, "value": value} for key, value in sorted(dict(pairs).items())]


def _filled(tx: Connection, rows: Sequence[Any]) -> list[LoggedModel]:
    ids = [row.id for row in rows]
    params, tags = _load_pairs(tx, logged_model_params, ids), _load_pairs(tx, logged_model_tags, ids)
    metrics = _load_metrics(tx, ids)
    return [
        LoggedModel(
            **row._mapping,
            params=params.get(row.id, ()),
            tags=tags.get(row.id, ()),
            metrics=metrics.get(row.id, ()),
        )
        for row in rows
    ]


def _load_pairs(tx: Connection, table: Table, ids: Sequence[str]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for begin in range(0, len(ids), _AT_ONCE):
        some = ids[begin : begin + _AT_ONCE]
        for model_id, key, value in tx.execute(select(table).where(table.c.model_id.in_(some))):
            found.setdefault(model_id, []).append(Pair(key, value))
    return found


def _load_metrics(tx: Connection, ids: Sequence[str]) -> dict[str, list[ModelMetric]]:
    found: dict[str, list[ModelMetric]] = {}
    for begin in range(0, len(ids), _AT_ONCE):
        some = ids[begin : begin + _AT_ONCE]
        held = select(logged_model_metrics).where(logged_model_metrics.c.model_id.in_(some))
        for row in tx.execute(held.order_by(logged_model_metrics.c.name, logged_model_metrics.c.step)):
            metric = ModelMetric(
                key=row.name,
                value=math.nan if row.value is None else row.value,
                at_ms=row.at_ms,
                step=row.step,
                model_id=row.model_id,
                run_id=row.run_id,
                dataset_name=row.dataset_name,
                dataset_digest=row.dataset_digest,
            )
            found.setdefault(row.model_id, []).append(metric)
    return found
