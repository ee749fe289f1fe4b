"""How far runs are: what was logged, and of how many steps, which may be among their params only."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sqlalchemy import Connection, select

from windlass.experiments.tables import run_params
from windlass.tracking.points import ProgressMark
from windlass.tracking.store import load_progress
from windlass.tracking.totals import decide_total


def load_marks(tx: Connection, run_ids: Sequence[str]) -> dict[str, ProgressMark]:
    marks = load_progress(tx, run_ids)
    without = [run_id for run_id, mark in marks.items() if mark.total is None]
    if not without:
        return marks
    params: dict[str, dict[str, str]] = {run_id: {} for run_id in without}
    query = select(run_params.c.run_id, run_params.c.key, run_params.c.value).where(run_params.c.run_id.in_(without))
    for row in tx.execute(query):
        params[row.run_id][row.key] = row.value
    totals = {run_id: decide_total(params[run_id], marks[run_id].step) for run_id in without}
    return marks | {run_id: dataclasses.replace(marks[run_id], total=total) for run_id, total in totals.items()}
