"""Where the artifacts of a run or a logged model are."""

from __future__ import annotations

from sqlalchemy import Connection, select

from windlass.experiments.tables import logged_models, tracked_runs


def load_run_uri(tx: Connection, run_id: str) -> str | None:
    """None if there is no such run. Deleted ones keep their artifacts."""
    return tx.execute(select(tracked_runs.c.artifact_uri).where(tracked_runs.c.id == run_id)).scalar()


def load_model_uri(tx: Connection, model_id: str) -> str | None:
    """None if there is no such logged model, or it was deleted."""
    query = select(logged_models.c.artifact_location)
    return tx.execute(query.where(logged_models.c.id == model_id, logged_models.c.stage == "active")).scalar()
