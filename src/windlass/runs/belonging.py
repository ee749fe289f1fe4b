"""Which project a run is in: its own, or, of a run that an MLflow client made, the one called as its experiment.
MLflow's first experiment is the project `default`, whatever either is called.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, case, func

from windlass.experiments.catalogue import DEFAULT_ID, DEFAULT_NAME, DEFAULT_PROJECT
from windlass.experiments.tables import experiments, tracked_runs
from windlass.runs.tables import runs

_OF_EXPERIMENT = case((tracked_runs.c.experiment_id == DEFAULT_ID, DEFAULT_PROJECT), else_=experiments.c.name)
project_of_run: ColumnElement[Any] = case(
    (runs.c.project == DEFAULT_NAME, DEFAULT_PROJECT), else_=func.coalesce(runs.c.project, _OF_EXPERIMENT)
)


def with_projects(tracked: Any) -> Any:
    """`tracked_runs`, or a join with it, and what `project_of_run` reads."""
    of_windlass = tracked.outerjoin(runs, runs.c.id == tracked_runs.c.id)
    return of_windlass.outerjoin(experiments, experiments.c.id == tracked_runs.c.experiment_id)


def same_project(project: str) -> str:
    return DEFAULT_PROJECT if project == DEFAULT_NAME else project
