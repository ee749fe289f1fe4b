"""Data and models that runs have read, and models they have made. Functions over an open transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import Connection, and_, select

from windlass.db.insertion import insert_missing, insert_new
from windlass.experiments.tables import input_datasets, input_tags, run_inputs, run_models
from windlass.experiments.types import DATASET_CONTEXT, Dataset, DatasetInput, DatasetSummary, ModelOutput, Pair

_AT_ONCE = 5_000
_MOST_SUMMARIES = 1_000


def put_inputs(tx: Connection, experiment_id: int, run_id: str, given: Sequence[DatasetInput]) -> None:
    """One that the run has already stays as it is, with its tags; so does the first of several of one name and
    digest."""
    for one in sorted(given, key=lambda one: (one.dataset.name, one.dataset.digest)):
        dataset_id = _put_dataset(tx, experiment_id, one.dataset)
        if insert_new(tx, run_inputs, {"run_id": run_id, "dataset_id": dataset_id}):
            owner = {"run_id": run_id, "dataset_id": dataset_id}
            tags = sorted(dict(one.tags).items())
            insert_missing(tx, input_tags, [{**owner, "key": key, "value": value} for key, value in tags])


def put_models(tx: Connection, run_id: str, direction: str, models: Sequence[ModelOutput]) -> None:
    owner = {"run_id": run_id, "direction": direction}
    insert_missing(tx, run_models, [{**owner, "model_id": model_id, "step": step} for model_id, step in models])


def load_inputs(tx: Connection, run_ids: Sequence[str]) -> dict[str, list[DatasetInput]]:
    found: dict[str, list[DatasetInput]] = {}
    data = input_datasets.c
    for begin in range(0, len(run_ids), _AT_ONCE):
        some = run_ids[begin : begin + _AT_ONCE]
        joined = run_inputs.join(input_datasets, run_inputs.c.dataset_id == data.id)
        columns = (data.name, data.digest, data.source_type, data.source, data.schema, data.profile)
        query = select(run_inputs.c.run_id, data.id, *columns).select_from(joined)
        rows = tx.execute(query.where(run_inputs.c.run_id.in_(some)).order_by(run_inputs.c.seq)).all()
        if not rows:
            continue
        tags: dict[tuple[str, str], list[Pair]] = {}
        for run_id, dataset_id, key, value in tx.execute(select(input_tags).where(input_tags.c.run_id.in_(some))):
            tags.setdefault((run_id, dataset_id), []).append(Pair(key, value))
        for run_id, dataset_id, name, digest, source_type, source, schema, profile in rows:
            dataset = Dataset(
                name=name, digest=digest, source_type=source_type, source=source, schema=schema, profile=profile
            )
            one = DatasetInput(dataset=dataset, tags=tags.get((run_id, dataset_id), ()))
            found.setdefault(run_id, []).append(one)
    return found


def load_summaries(tx: Connection, experiment_ids: Sequence[int]) -> list[DatasetSummary]:
    """The data that runs of these experiments have read, once for each use that it was put to."""
    is_context = and_(
        input_tags.c.run_id == run_inputs.c.run_id,
        input_tags.c.dataset_id == run_inputs.c.dataset_id,
        input_tags.c.key == DATASET_CONTEXT,
    )
    joined = input_datasets.join(run_inputs, run_inputs.c.dataset_id == input_datasets.c.id)
    columns = (input_datasets.c.experiment_id, input_datasets.c.name, input_datasets.c.digest, input_tags.c.value)
    query = select(*columns).select_from(joined.outerjoin(input_tags, is_context)).distinct()
    rows = tx.execute(query.where(input_datasets.c.experiment_id.in_(experiment_ids)).limit(_MOST_SUMMARIES))
    return [DatasetSummary(*row) for row in rows]


def _put_dataset(tx: Connection, experiment_id: int, dataset: Dataset) -> str:
    named = {"experiment_id": experiment_id, "name": dataset.name, "digest": dataset.digest}
    row = {
        "id": uuid.uuid4().hex,
        **named,
        "source_type": dataset.source_type,
        "source": dataset.source,
        "schema": dataset.schema,
        "profile": dataset.profile,
    }
    if insert_new(tx, input_datasets, row):
        return str(row["id"])
    same = [input_datasets.c[name] == value for name, value in named.items()]
    return str(tx.execute(select(input_datasets.c.id).where(*same)).scalar_one())
