"""How far runs are: what was logged, and of how many steps, which may be among their params only."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sqlalchemy import Connection, select

from windlass.experiments.tables import run_params
from windlass.runs.rulebook import heed_logged
from windlass.runs.tables import runs
from windlass.tracking.blocks import Logged
from windlass.tracking.points import ProgressMark
from windlass.tracking.store import load_progress, note_progress
from windlass.tracking.totals import KEYS, decide_total

_RUNS_AT_ONCE = 1_000


def load_marks(tx: Connection, run_ids: Sequence[str]) -> dict[str, ProgressMark]:
    marks = load_progress(tx, run_ids)
    without = [run_id for run_id, mark in marks.items() if mark.total is None]
    params = _load_params(tx, without)
    totals = {run_id: decide_total(found, marks[run_id].step) for run_id, found in params.items()}
    return marks | {run_id: dataclasses.replace(marks[run_id], total=total) for run_id, total in totals.items()}


def take_logged(tx: Connection, run_id: str, values: Sequence[Logged], *, now: float) -> None:
    """What MLflow's clients log, for the run's progress and its rules; in the transaction that stores it."""
    # Clients say 0 where they mean none.
    if furthest := max(((one.step, one.at) for one in values if one.step), default=None):
        attempt = tx.execute(select(runs.c.attempt_count).where(runs.c.id == run_id)).scalar()
        note_progress(tx, run_id, step=furthest[0], at=furthest[1], attempt=attempt)
    heed_logged(tx, run_id, values, now=now)


def _load_params(tx: Connection, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Those alone that may say how many steps there will be: a run may have hundreds of others."""
    found: dict[str, dict[str, str]] = {}
    for start in range(0, len(run_ids), _RUNS_AT_ONCE):
        some = list(run_ids[start : start + _RUNS_AT_ONCE])
        query = select(run_params.c.run_id, run_params.c.key, run_params.c.value)
        for row in tx.execute(query.where(run_params.c.run_id.in_(some), run_params.c.key.in_(sorted(KEYS)))):
            found.setdefault(row.run_id, {})[row.key] = row.value
    return found
