"""What users can do with checkpoints: list, look at, verify, remove. Used by the API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from windlass.checkpoints import store
from windlass.checkpoints.arrivals import Story
from windlass.checkpoints.choice import (
    BestRule,
    by_checkpoint,
    copies_of,
    decide_best,
    decide_newest,
    decide_refusal,
    find,
    newest_first,
)
from windlass.checkpoints.places import check_place, remove_place
from windlass.checkpoints.types import CheckpointRecord, CheckpointState
from windlass.core.clock import Clock
from windlass.core.errors import Conflict, NotFound
from windlass.core.integrity import Finding, Integrity
from windlass.core.manifest import PartFile
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
        views = [_view(places, good, rule) for places in by_checkpoint(shown)]
        return wire.CheckpointList(run_id=run.id, best_by=rule.metric, checkpoints=views)

    def show(self, ref: str, which: str) -> wire.CheckpointDetail:
        run, good, record = self._find(ref, which)
        with self._db.read() as tx:
            parts: Sequence[PartFile] | None = store.load_files(tx, record.id)
        if parts is None and (manifest := _look(run, record, contents=False).manifest) is not None:
            parts = manifest.files
        files = None if parts is None else [wire.FileView(**_fields(part)) for part in parts]
        return wire.CheckpointDetail(checkpoint=self._view_of(run, good, record), files=files)

    def verify(self, ref: str, which: str) -> wire.Verification:
        """Read all of its files, which may take minutes, and keep what was found. What is not seen stays as it is."""
        run, _, record = self._find(ref, which)
        found = _look(run, record)
        self._keep(record, found)
        _, good, record = self._find(run.id, record.id)
        return wire.Verification(
            checkpoint=self._view_of(run, good, record),
            finding=found.finding,
            problems=list(found.problems[:_MOST_PROBLEMS]),
            host=os.uname().nodename,
        )

    def remove(self, ref: str, which: str, *, forget: bool, tier: str | None = None) -> wire.CheckpointView:
        """Remove its files and mark it deleted, at the place that an id names, in one tier, or everywhere; what a run
        that is not over would go on from stays. Safe to repeat."""
        run, good, record = self._find(ref, which)
        wanted = [record] if which == record.id else self._copies(record)
        wanted = [one for one in wanted if tier is None or one.tier == tier]
        if not wanted:
            raise NotFound(f"step {record.step} of run {run.id} was never in a {tier}")
        there = [one for one in wanted if one.state is not CheckpointState.DELETED]
        if there:
            _check_removable(run, good, there)
        for one in there:
            self._mark_deleted(one, "taken off the list" if forget else _remove_files(run, one))
        _, good, record = self._find(run.id, wanted[0].id)
        return self._view_of(run, good, record)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _find(self, ref: str, which: str) -> tuple[RunRecord, Sequence[CheckpointRecord], CheckpointRecord]:
        """The run, its good checkpoints, and the one that is meant."""
        with self._db.read() as tx:
            run = self._runs.resolve_in(tx, ref)
            good = store.load_good(tx, run.id)
            named = store.load_named(tx, run.id, which)
        candidates = {record.id: record for record in (*good, *named)}
        return run, good, find(list(candidates.values()), which, best_rule(run))

    def _copies(self, record: CheckpointRecord) -> Sequence[CheckpointRecord]:
        """The same checkpoint at all of its places."""
        with self._db.read() as tx:
            return copies_of(store.load_named(tx, record.run_id, str(record.step)), record)

    def _view_of(
        self, run: RunRecord, good: Sequence[CheckpointRecord], record: CheckpointRecord
    ) -> wire.CheckpointView:
        others = [one for one in self._copies(record) if one.id != record.id]
        return _view([record, *others], good, best_rule(run))

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


def _look(run: RunRecord, record: CheckpointRecord, *, contents: bool = True) -> Integrity:
    endpoint = _endpoint(run, record)
    return check_place(record.location, run_id=run.id, step=record.step, endpoint=endpoint, contents=contents)


def _endpoint(run: RunRecord, record: CheckpointRecord) -> str | None:
    return run.spec.checkpoint.endpoint_of(record.location) if run.spec.checkpoint is not None else None


def _remove_files(run: RunRecord, record: CheckpointRecord) -> str:
    obstacle = remove_place(record.location, run_id=run.id, step=record.step, endpoint=_endpoint(run, record))
    if obstacle is not None:
        raise Conflict(obstacle, hint="--forget only takes it off the list")
    return "removed by hand"


def _check_removable(run: RunRecord, good: Sequence[CheckpointRecord], wanted: Sequence[CheckpointRecord]) -> None:
    """Raises Conflict. An older one of a run that is not over goes only while the newest is there to go on from."""
    if refusal := decide_refusal(good, wanted, run_is_over=run.state.is_terminal):
        hint = f"it would go on from it; `windlass cancel {run.id}` first, or remove an older one"
        raise Conflict(refusal, hint=hint)
    going = {record.id for record in wanted}
    newest = decide_newest(record for record in good if record.id not in going)
    if run.state.is_terminal or newest is None or not any(record.is_good for record in wanted):
        return
    seen = _look(run, newest, contents=False)
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


def _view(
    places: Sequence[CheckpointRecord], all_of_run: Sequence[CheckpointRecord], rule: BestRule
) -> wire.CheckpointView:
    """Of one checkpoint; the first place is the one that stands for it."""
    newest, best, record = decide_newest(all_of_run), decide_best(all_of_run, rule), places[0]
    return wire.CheckpointView(
        **_fields(record),
        places=[_place(place) for place in places],
        is_newest=newest is not None and record.is_same(newest) and record.is_good,
        is_best=best is not None and record.is_same(best) and record.is_good,
    )


def _place(record: CheckpointRecord) -> wire.PlaceView:
    return wire.PlaceView(**{name: getattr(record, name) for name in wire.PlaceView.model_fields})


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
