"""Where the artifacts of a run or a logged model are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, select

from windlass.experiments.tables import logged_models, tracked_runs

_MOST_MODELS = 1_000  # of a run
_MOST_MEANT = 10


class ModelPlace(NamedTuple):
    id: str
    name: str
    uri: str


def load_run_uri(tx: Connection, run_id: str) -> str | None:
    """None if there is no such run. Deleted ones keep their artifacts."""
    return tx.execute(select(tracked_runs.c.artifact_uri).where(tracked_runs.c.id == run_id)).scalar()


def load_model_uri(tx: Connection, model_id: str) -> str | None:
    """None if there is no such logged model, or it was deleted."""
    query = select(logged_models.c.artifact_location)
    return tx.execute(query.where(logged_models.c.id == model_id, logged_models.c.stage == "active")).scalar()


def load_models_of(tx: Connection, run_id: str, name: str | None = None) -> Sequence[ModelPlace]:
    """Those that a run has logged, or those of this name, the newest first."""
    named = () if name is None else (logged_models.c.name == name,)
    return _models(tx, logged_models.c.source_run_id == run_id, *named, most=_MOST_MODELS)


def find_models(tx: Connection, beginning: str) -> Sequence[ModelPlace]:
    """Those whose ids begin so."""
    ids = logged_models.c.id
    return _models(tx, ids >= beginning, ids < beginning + "\x7f", most=_MOST_MEANT)


def _models(tx: Connection, *which: ColumnElement[bool], most: int) -> Sequence[ModelPlace]:
    c = logged_models.c
    query = select(c.id, c.name, c.artifact_location).where(*which, c.stage == "active")
    return [ModelPlace(*row) for row in tx.execute(query.order_by(c.created_ms.desc(), c.id).limit(most))]
