"""Reading and writing the catalogue. Functions over an open transaction; `move` alone changes a state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, insert, select, update

from windlass.checkpoints.arrivals import CatalogueChanges, Story, decide_changes
from windlass.checkpoints.tables import checkpoint_files, checkpoints
from windlass.checkpoints.types import CheckpointRecord, CheckpointState, transition
from windlass.core.errors import Conflict
from windlass.core.ids import attempt_id
from windlass.core.manifest import PartFile
from windlass.runs import store as runs
from windlass.runs.bulk import in_parts
from windlass.runs.types import EventKind
from windlass.tracking.saves import Listed, SaveNote

AS_FOUND = "files"  # the format of what others saved: those do not save when they are warned


def record_notes(tx: Connection, run_id: str, source: str, notes: Sequence[SaveNote]) -> None:
    """In the transaction that moves the position of `source`, `spool:<attempt>:<rank>`: so each counts once. Whoever
    calls holds the run's lock of metrics, so that two sources do not write at the same time."""
    if not notes:
        return
    attempt = int(source.rsplit(":", 2)[1].rpartition(".")[2])
    known = load_at(tx, run_id, sorted({note.folder for note in notes if not isinstance(note, Listed)}))
    if any(isinstance(note, Listed) for note in notes):
        seen = {record.id for record in known}
        known += [record for record in load_good(tx, run_id, lock=True) if record.id not in seen]
    changes = decide_changes(run_id, attempt, known, notes)
    if changes.new:
        tx.execute(insert(checkpoints), [asdict(record) for record in changes.new])
        newest = max(changes.new, key=lambda record: record.created_at)
        heeds = newest.format != AS_FOUND
        runs.update_attempt(tx, attempt_id(run_id, attempt), saved_at=newest.created_at, heeds_notice=heeds)
    before = {record.id: record for record in known}
    for record in changes.changed:
        move(tx, before[record.id], record.state, detail=record.detail)
    _keep_files(tx, changes)
    for story in changes.stories:
        tell(tx, story)


def _keep_files(tx: Connection, changes: CatalogueChanges) -> None:
    for record in changes.changed:  # one that is back: a server of the version before has left its list
        if record.id in changes.files:
            tx.execute(delete(checkpoint_files).where(checkpoint_files.c.checkpoint_id == record.id))
    rows = [{"checkpoint_id": id, "files": [astuple(file) for file in files]} for id, files in changes.files.items()]
    if rows:
        tx.execute(insert(checkpoint_files), rows)


def tell(tx: Connection, story: Story) -> None:
    about = story.checkpoint
    runs.record_event(
        tx,
        about.run_id,
        EventKind.CHECKPOINT,
        at=story.at,
        attempt=about.attempt,
        message=story.message,
        data={"id": about.id, "step": about.step, "state": about.state, "size_bytes": about.size_bytes},
    )


def move(
    tx: Connection,
    record: CheckpointRecord,
    state: CheckpointState,
    *,
    detail: str | None,
    verified_at: float | None = None,
) -> None:
    """Guarded: raises Conflict and changes nothing if the state is another one by now."""
    values: dict[str, Any] = {"state": transition(record.state, state), "detail": detail}
    if verified_at is not None:
        values["verified_at"] = verified_at
    unchanged = (checkpoints.c.id == record.id, checkpoints.c.state == record.state)
    if tx.execute(update(checkpoints).where(*unchanged).values(**values)).rowcount != 1:
        raise Conflict(f"checkpoint {record.id} was changed by someone else at the same moment", hint="try again")
    if state is CheckpointState.DELETED:
        tx.execute(delete(checkpoint_files).where(checkpoint_files.c.checkpoint_id == record.id))


def load_files(tx: Connection, checkpoint: str) -> list[PartFile] | None:
    """What it consists of; None if nobody has told."""
    found = tx.execute(select(checkpoint_files.c.files).where(checkpoint_files.c.checkpoint_id == checkpoint)).scalar()
    return None if found is None else [PartFile(name=name, size_bytes=size, sha256=sha) for name, size, sha in found]


def load_good(tx: Connection, run_id: str, *, lock: bool = False) -> list[CheckpointRecord]:
    """Those that are available; with `lock` they stay so until the transaction ends. A run may have had a hundred
    thousand: what it deleted is not read."""
    good = and_(checkpoints.c.run_id == run_id, checkpoints.c.state == CheckpointState.AVAILABLE)
    query = select(checkpoints).where(good)
    return [_record(row) for row in tx.execute(query.with_for_update() if lock else query)]


def load_newest(tx: Connection, run_id: str, *, limit: int) -> list[CheckpointRecord]:
    """Of every state, newest first."""
    c = checkpoints.c
    query = select(checkpoints).where(c.run_id == run_id)
    rows = tx.execute(query.order_by(c.step.desc(), c.created_at.desc(), c.id.desc()).limit(limit))
    return [_record(row) for row in rows]


def load_named(tx: Connection, run_id: str, which: str) -> list[CheckpointRecord]:
    """Of every state, those of this step or with this beginning of their id."""
    c = checkpoints.c
    is_step = which.isdecimal() and int(which) < 2**63
    named = c.step == int(which) if is_step else c.id.startswith(which, autoescape=True)
    return [_record(row) for row in tx.execute(select(checkpoints).where(c.run_id == run_id, named))]


def load_locked(tx: Connection, checkpoint: str) -> CheckpointRecord:
    """Locked until the transaction ends. Rows are never deleted, so one that was seen is there."""
    return _record(tx.execute(select(checkpoints).where(checkpoints.c.id == checkpoint).with_for_update()).one())


def load_at(tx: Connection, run_id: str, locations: Sequence[str]) -> list[CheckpointRecord]:
    """Locked until the transaction ends."""
    of_run = checkpoints.c.run_id == run_id
    found = (
        tx.execute(select(checkpoints).where(of_run, checkpoints.c.location.in_(some)).with_for_update()).all()
        for some in in_parts(locations)
    )
    return [_record(row) for rows in found for row in rows]


def _record(row: Row[Any]) -> CheckpointRecord:
    values = dict(row._mapping)
    return CheckpointRecord(**{**values, "state": CheckpointState(values["state"])})
