"""What users can do with checkpoints: list, look at, verify, remove. Used by the API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windlass.checkpoints import store
from windlass.checkpoints.arrivals import Story
from windlass.checkpoints.choice import BestRule, decide_best, decide_newest, decide_refusal, find, newest_first
from windlass.checkpoints.removal import remove_folder
from windlass.checkpoints.types import CheckpointRecord, CheckpointState
from windlass.core.clock import Clock
from windlass.core.errors import Conflict
from windlass.core.integrity import Finding, Integrity, check_folder
from windlass.db.database import Database
from windlass.runs.records import RunRecord
from windlass.runs.service import RunService
from windlass.wire import checkpoints as wire

_STATES = {
    Finding.GOOD: CheckpointState.AVAILABLE,
    Finding.CORRUPT: CheckpointState.CORRUPT,
    Finding.MISSING: CheckpointState.DELETED,
}
_MOST_PROBLEMS = 20


class CheckpointService:
    def __init__(self, db: Database, runs: RunService, clock: Clock) -> None:
        self._db = db
        self._runs = runs
        self._clock = clock

    def list(self, ref: str, *, everything: bool, limit: int) -> wire.CheckpointList:
        """Newest first; with `everything` also those that are corrupt or deleted."""
        with self._db.read() as tx:
            run = self._runs.resolve_in(tx, ref)
            good = store.load_good(tx, run.id)
            shown = store.load_newest(tx, run.id, limit=limit) if everything else newest_first(good)[:limit]
        rule = best_rule(run)
        return wire.CheckpointList(run_id=run.id, best_by=rule.metric, checkpoints=_views(shown, good, rule))

    def show(self, ref: str, which: str) -> wire.CheckpointDetail:
        run, good, record = self._find(ref, which)
        seen = check_folder(record.location, run_id=run.id, step=record.step, contents=False)
        files = [wire.FileView(**_fields(part)) for part in seen.manifest.files] if seen.manifest else None
        return wire.CheckpointDetail(checkpoint=_views([record], good, best_rule(run))[0], files=files)

    def verify(self, ref: str, which: str) -> wire.Verification:
        """Read all of its files, which may take minutes, and keep what was found. What is not seen stays as it is."""
        run, _, record = self._find(ref, which)
        found = check_folder(record.location, run_id=run.id, step=record.step)
        self._keep(record, found)
        _, good, record = self._find(run.id, record.id)
        return wire.Verification(
            checkpoint=_views([record], good, best_rule(run))[0],
            finding=found.finding,
            problems=list(found.problems[:_MOST_PROBLEMS]),
            host=os.uname().nodename,
        )

    def remove(self, ref: str, which: str, *, forget: bool) -> wire.CheckpointView:
        """Remove its files and mark it deleted; what a run that is not over would go on from stays. Safe to repeat."""
        run, good, record = self._find(ref, which)
        if record.state is not CheckpointState.DELETED:
            _check_removable(run, good, record)
            why = "taken off the list" if forget else self._remove_files(run, record)
            record = self._mark_deleted(record, why)
        return _views([record], [], best_rule(run))[0]

    # ---- inside ------------------------------------------------------------------------------------------------

    def _find(self, ref: str, which: str) -> tuple[RunRecord, Sequence[CheckpointRecord], CheckpointRecord]:
        """The run, its good checkpoints, and the one that is meant."""
        with self._db.read() as tx:
            run = self._runs.resolve_in(tx, ref)
            good = store.load_good(tx, run.id)
            named = store.load_named(tx, run.id, which)
        candidates = {record.id: record for record in (*good, *named)}
        return run, good, find(list(candidates.values()), which, best_rule(run))

    def _keep(self, record: CheckpointRecord, found: Integrity) -> None:
        state = _STATES.get(found.finding)
        if state is None:
            return
        now = self._clock.now()
        with self._db.write() as tx:
            current = store.load_locked(tx, record.id)
            if found.finding is Finding.MISSING and current.state is CheckpointState.DELETED:
                return  # why it is gone is known better already
            detail = None if state is CheckpointState.AVAILABLE else found.problems[0]
            verified_at = now if state is CheckpointState.AVAILABLE else None
            store.move(tx, current, state, detail=detail, verified_at=verified_at)
            changed = store.load_locked(tx, record.id)
            if changed.state is not current.state:
                words = "as it was saved after all" if detail is None else f"{state}: {detail}"
                message = f"the checkpoint of step {record.step:,} is {words}"
                store.tell(tx, Story(at=now, message=message, checkpoint=changed))

    def _remove_files(self, run: RunRecord, record: CheckpointRecord) -> str:
        place = Path(record.location)
        hint = "--forget only takes it off the list"
        if "://" in record.location or not place.is_absolute() or not place.parent.is_dir():
            here = os.uname().nodename
            raise Conflict(f"{record.location} cannot be seen from the server's machine, {here}", hint=hint)
        try:
            obstacle = remove_folder(place, run_id=run.id, step=record.step)
        except OSError as error:
            raise Conflict(f"{record.location} cannot be removed: {error.strerror}", hint=hint) from error
        if obstacle is not None:
            raise Conflict(f"nothing was removed: {obstacle}", hint=hint)
        return "removed by hand"

    def _mark_deleted(self, record: CheckpointRecord, why: str) -> CheckpointRecord:
        with self._db.write() as tx:
            current = store.load_locked(tx, record.id)
            if current.state is CheckpointState.DELETED:
                return current
            store.move(tx, current, CheckpointState.DELETED, detail=why)
            deleted = store.load_locked(tx, record.id)
            message = f"the checkpoint of step {record.step:,} was {why}"
            store.tell(tx, Story(at=self._clock.now(), message=message, checkpoint=deleted))
        return deleted


def _check_removable(run: RunRecord, good: Sequence[CheckpointRecord], record: CheckpointRecord) -> None:
    """Raises Conflict. An older one of a run that is not over goes only while the newest is there to go on from."""
    if refusal := decide_refusal(good, record, run_is_over=run.state.is_terminal):
        hint = f"it would go on from it; `windlass cancel {run.id}` first, or remove an older one"
        raise Conflict(refusal, hint=hint)
    newest = decide_newest(good)
    if run.state.is_terminal or newest is None or not record.is_good:
        return
    seen = check_folder(newest.location, run_id=run.id, step=newest.step, contents=False)
    if seen.finding in (Finding.CORRUPT, Finding.MISSING):
        raise Conflict(
            f"step {newest.step}, which run {run.id} would go on from, is {seen.finding}: {seen.problems[0]}",
            hint=f"`windlass checkpoints verify {run.id}` takes note of it; the run may need the older one",
        )


def best_rule(run: RunRecord) -> BestRule:
    wanted = run.spec.checkpoint
    if wanted is None or wanted.best is None:
        return BestRule()
    return BestRule(metric=wanted.best, highest=wanted.best_is is wire.BestIs.HIGHEST)


def _views(
    shown: Sequence[CheckpointRecord], all_of_run: Sequence[CheckpointRecord], rule: BestRule
) -> list[wire.CheckpointView]:
    newest, best = decide_newest(all_of_run), decide_best(all_of_run, rule)
    return [
        wire.CheckpointView(
            **_fields(record),
            is_newest=newest is not None and record.id == newest.id,
            is_best=best is not None and record.id == best.id,
        )
        for record in shown
    ]


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
