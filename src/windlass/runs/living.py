"""The live attempts of one controller and their runs, as the database has them; those that have not changed are not
read again: with ten thousand of them, reading all would take most of a pass.

A run has a version. An attempt has none; but what of a live one is not compared here is written by the controller that
looks after it, which says so (`forget`). Losing what is remembered costs reading again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from windlass.runs import store
from windlass.runs.records import AttemptRecord, RunRecord
from windlass.runs.store import AttemptMark, Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    attempts: list[AttemptRecord]
    runs: Mapping[str, RunRecord]  # may lack one that changed between two reads: the next pass sees it whole


class LivingBook:
    """Not thread-safe: one controller loop owns it."""

    def __init__(self) -> None:
        self._attempts: dict[str, tuple[AttemptMark, AttemptRecord]] = {}
        self._runs: dict[str, RunRecord] = {}

    def load(self, tx: Connection, slots: Slots) -> Living:
        marks = {mark.id: mark for mark in store.load_live_marks(tx, slots)}
        self._load_attempts(tx, marks)
        self._load_runs(tx, marks)
        return Living(attempts=[attempt for _, attempt in self._attempts.values()], runs=self._runs)

    def forget(self, attempt_ids: Iterable[str]) -> None:
        """To be called before they are written to: a write may fail after it was made."""
        for attempt_id in attempt_ids:
            self._attempts.pop(attempt_id, None)

    def _load_attempts(self, tx: Connection, marks: Mapping[str, AttemptMark]) -> None:
        known = {id: found for id, found in self._attempts.items() if found[0] == marks.get(id)}
        changed = [attempt_id for attempt_id in marks if attempt_id not in known]
        fresh = {attempt.id: attempt for attempt in store.load_attempts_by_id(tx, changed)}
        self._attempts = known | {id: (marks[id], attempt) for id, attempt in fresh.items()}

    def _load_runs(self, tx: Connection, marks: Mapping[str, AttemptMark]) -> None:
        versions = {mark.run_id: mark.run_version for mark in marks.values()}
        known = {run_id: run for run_id, run in self._runs.items() if versions.get(run_id) == run.version}
        changed = [run_id for run_id in versions if run_id not in known]
        self._runs = known | {run.id: run for run in store.load_runs(tx, changed)}
