"""Everything that is kept of runs, for a page of them at once: params, tags, latest metrics, inputs and outputs.
Functions over an open transaction.

Ids go to the database as one value, so that a statement is the same for any number of them: taking one apart for a
hundred ids takes longer than answering it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    union_all,
)

from windlass.experiments.inputs import load_inputs
from windlass.experiments.tables import run_inputs, run_models, run_params, run_tags
from windlass.experiments.types import LatestMetric, ModelOutput, Pair, RunInfo, TrackedRun
from windlass.tracking.tables import summaries

_NOTHING: tuple[Any, ...] = ()


def fill_runs(tx: Connection, infos: Sequence[RunInfo]) -> list[TrackedRun]:
    """With everything that is kept of them."""
    ids = [info.id for info in infos]
    if not ids:
        return []
    metrics = _load_metrics(tx, ids)
    params: dict[str, list[Pair]] = {}
    tags: dict[str, list[Pair]] = {}
    models: dict[str, list[tuple[int, str, ModelOutput]]] = {}
    reading: list[str] = []
    for kind, run_id, key, value, step, seq in _rows(tx, _held_by(tx.dialect.name), ids):
        if kind == "tag":
            tags.setdefault(run_id, []).append(Pair(key, value))
        elif kind == "param":
            params.setdefault(run_id, []).append(Pair(key, value))
        elif kind == "data":
            reading.append(run_id)
        else:
            models.setdefault(run_id, []).append((seq, kind, ModelOutput(key, step)))
    datasets = load_inputs(tx, sorted(set(reading)))
    filled = []
    for info in infos:
        used = [(kind, model) for _, kind, model in sorted(models.get(info.id, ()))]
        filled.append(
            TrackedRun(
                info=info,
                metrics=metrics.get(info.id, _NOTHING),
                params=params.get(info.id, _NOTHING),
                tags=tags.get(info.id, _NOTHING),
                datasets=datasets.get(info.id, _NOTHING),
                model_inputs=[model.model_id for kind, model in used if kind == "input"],
                model_outputs=[model for kind, model in used if kind == "output"],
            )
        )
    return filled


def _load_metrics(tx: Connection, ids: Sequence[str]) -> dict[str, list[LatestMetric]]:
    """As `tracking.store.load_latest`, without an object for each of what may be a hundred thousand."""
    found: dict[str, list[LatestMetric]] = {run_id: [] for run_id in ids}
    for run_id, name, last, at, step in _rows(tx, _metrics_of(tx.dialect.name), ids):
        value = math.nan if last is None else last
        found[run_id].append(LatestMetric(name, value, round((at or 0.0) * 1000), step or 0))
    return found


def _rows(tx: Connection, query: Select[Any] | CompoundSelect[Any], ids: Sequence[str]) -> Sequence[Any]:
    """All at once: one by one takes several times as long."""
    given = list(ids) if tx.dialect.name == "postgresql" else json.dumps(list(ids))
    return tx.execute(query, {"ids": given}).all()


@lru_cache(maxsize=2)
def _metrics_of(dialect: str) -> Select[Any]:
    columns = (summaries.c.run_id, summaries.c.name, summaries.c.last, summaries.c.last_at, summaries.c.last_step)
    return select(*columns).where(_is_one(summaries.c.run_id, dialect))


@lru_cache(maxsize=2)
def _held_by(dialect: str) -> CompoundSelect[Any]:
    """What has a text for a value, in one question: most runs have few of each."""
    none: ColumnElement[Any] = literal_column("NULL")
    zero: ColumnElement[Any] = literal_column("0")
    params, tags = (
        select(literal_column(f"'{kind}'"), table.c.run_id, table.c.key, table.c.value, zero, zero).where(
            _is_one(table.c.run_id, dialect)
        )
        for kind, table in (("param", run_params), ("tag", run_tags))
    )
    models = select(
        run_models.c.direction, run_models.c.run_id, run_models.c.model_id, none, run_models.c.step, run_models.c.seq
    ).where(_is_one(run_models.c.run_id, dialect))
    data = select(literal_column("'data'"), run_inputs.c.run_id, none, none, zero, zero).where(
        _is_one(run_inputs.c.run_id, dialect)
    )
    return union_all(params, tags, models, data)


def _is_one(column: ColumnElement[str], dialect: str) -> ColumnElement[bool]:
    """Of the ids that are given."""
    if dialect == "postgresql":
        # Not `= ANY`: in a prepared statement that is one comparison for each id and row, where a table is read whole.
        return column.in_(select(func.unnest(cast(bindparam("ids"), ARRAY(Text)))))
    return column.in_(select(func.json_each(bindparam("ids")).table_valued("value").c.value))
