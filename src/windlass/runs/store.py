"""Reading and writing runs, attempts and events. Functions over an open transaction; `advance` is the only one that
changes a run's state, always together with the event that says so and guarded by the version it was decided on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, insert, select, tuple_, update

from windlass.core.errors import Conflict
from windlass.core.exits import Exit
from windlass.core.ids import attempt_id, slot_of
from windlass.core.resources import Placement
from windlass.runs.records import (
    AttemptRecord,
    RunHead,
    RunRecord,
    attempt_from_row,
    exit_to_json,
    head_from_row,
    placement_to_json,
    run_from_row,
)
from windlass.runs.tables import attempts, environments, events, runs
from windlass.runs.types import STATE_AFTER, AttemptState, EventKind, RunState, transition

LIVE = (RunState.STARTING, RunState.RUNNING)
WAITING = (RunState.QUEUED, RunState.RECOVERING)
Slots = frozenset[int] | None  # the runs of these slots only; None: all


_HEAD = [column for column in runs.c if column.name not in ("spec", "argv", "origin")]


class ChangedMeanwhile(Conflict):
    """The run is no longer as it was when the decision was taken: decide again."""

    code = "changed_meanwhile"


# ---- runs ----------------------------------------------------------------------------------------------------------


def insert_run(tx: Connection, values: Mapping[str, Any]) -> None:
    tx.execute(insert(runs).values(**values))


def load_run(tx: Connection, run_id: str) -> RunRecord | None:
    row = tx.execute(select(runs).where(runs.c.id == run_id)).first()
    return run_from_row(row) if row else None


def load_run_by_key(tx: Connection, idempotency_key: str) -> RunRecord | None:
    row = tx.execute(select(runs).where(runs.c.idempotency_key == idempotency_key)).first()
    return run_from_row(row) if row else None


def load_runs_in(tx: Connection, states: Iterable[RunState]) -> list[RunRecord]:
    rows = tx.execute(select(runs).where(runs.c.state.in_(list(states))).order_by(runs.c.queued_at, runs.c.id))
    return [run_from_row(row) for row in rows]


def load_runs(tx: Connection, run_ids: Sequence[str]) -> list[RunRecord]:
    rows = tx.execute(select(runs).where(runs.c.id.in_(list(run_ids))))
    return [run_from_row(row) for row in rows]


def load_live_versions(tx: Connection, slots: Slots = None) -> dict[str, int]:
    """The current version of every run with a live attempt: tells whether it is still as it was loaded before."""
    joined = runs.join(attempts, attempts.c.run_id == runs.c.id)
    rows = tx.execute(select(runs.c.id, runs.c.version).select_from(joined).where(_live(slots)))
    return {row.id: row.version for row in rows}


def load_page(
    tx: Connection,
    *,
    states: Sequence[str] = (),
    project: str | None = None,
    name: str | None = None,
    tag: tuple[str, str | None] | None = None,
    before: tuple[float, str] | None = None,
    limit: int = 50,
) -> list[RunHead]:
    """Newest first, older than the `before` (submitted_at, id) of the last run of the previous page."""
    query = select(*_HEAD).order_by(runs.c.submitted_at.desc(), runs.c.id.desc()).limit(limit)
    if states:
        query = query.where(runs.c.state.in_(states))
    if project is not None:
        query = query.where(runs.c.project == project)
    if name is not None:
        query = query.where(runs.c.name == name)
    if tag is not None:
        key, value = tag
        held = runs.c.tags[key].as_string()
        query = query.where(held.is_not(None) if value is None else held == value)
    if before is not None:
        query = query.where(tuple_(runs.c.submitted_at, runs.c.id) < tuple_(*before))
    return [head_from_row(row) for row in tx.execute(query)]


def find_ids(tx: Connection, prefix: str, *, limit: int = 10) -> list[str]:
    """Ids that start with `prefix`. A range, not LIKE: it uses the primary key on both databases."""
    last = prefix + "\x7f"
    rows = tx.execute(select(runs.c.id).where(runs.c.id >= prefix, runs.c.id < last).order_by(runs.c.id).limit(limit))
    return [row.id for row in rows]


def find_newest_named(tx: Connection, name: str) -> str | None:
    return tx.execute(
        select(runs.c.id).where(runs.c.name == name).order_by(runs.c.submitted_at.desc()).limit(1)
    ).scalar()


def recent_names(tx: Connection, *, limit: int = 500) -> list[tuple[str, str]]:
    rows = tx.execute(select(runs.c.id, runs.c.name).order_by(runs.c.submitted_at.desc()).limit(limit))
    return [(row.id, row.name) for row in rows]


def count_by_state(tx: Connection, states: Iterable[RunState]) -> dict[str, int]:
    rows = tx.execute(select(runs.c.state, func.count()).where(runs.c.state.in_(list(states))).group_by(runs.c.state))
    return {row[0]: row[1] for row in rows}


def advance(
    tx: Connection,
    run: RunRecord,
    kind: EventKind,
    *,
    now: float,
    message: str,
    attempt: int | None = None,
    data: Mapping[str, Any] | None = None,
    **changes: Any,
) -> None:
    """Move `run` to the state that follows `kind`, with its event. Raises ChangedMeanwhile and changes nothing if the
    run was changed since it was loaded.
    """
    target = transition(run.state, STATE_AFTER[kind])
    _update_guarded(tx, run, state=target, **changes)
    record_event(tx, run.id, kind, at=now, message=message, attempt=attempt, data=data)


def annotate(
    tx: Connection,
    run: RunRecord,
    kind: EventKind,
    *,
    now: float,
    message: str,
    data: Mapping[str, Any] | None = None,
    **changes: Any,
) -> None:
    """Change fields other than the state, with an event; guarded like `advance`."""
    _update_guarded(tx, run, **changes)
    record_event(tx, run.id, kind, at=now, message=message, attempt=run.attempt_count or None, data=data)


def _update_guarded(tx: Connection, run: RunRecord, **changes: Any) -> None:
    done = tx.execute(
        update(runs)
        .where(runs.c.id == run.id, runs.c.version == run.version)
        .values(version=run.version + 1, **changes)
    )
    if done.rowcount != 1:
        raise ChangedMeanwhile(f"run {run.id} was changed by someone else at the same moment", hint="try again")


# ---- attempts ------------------------------------------------------------------------------------------------------


def insert_attempt(tx: Connection, run: RunRecord, placement: Placement, *, now: float) -> str:
    number = run.attempt_count + 1
    new_id = attempt_id(run.id, number)
    tx.execute(
        insert(attempts).values(
            id=new_id,
            run_id=run.id,
            number=number,
            state=AttemptState.STARTING,
            engine=placement.engine,
            placement=placement_to_json(placement),
            created_at=now,
            log_dirs=[],
            slot=slot_of(run.id),
        )
    )
    return new_id


def update_attempt(tx: Connection, attempt_id: str, **changes: Any) -> None:
    tx.execute(update(attempts).where(attempts.c.id == attempt_id).values(**changes))


def update_usages(tx: Connection, usages: Mapping[str, Any]) -> None:
    if usages:
        change = update(attempts).where(attempts.c.id == bindparam("key")).values(usage=bindparam("value"))
        tx.execute(change, [{"key": attempt_id, "value": usage} for attempt_id, usage in usages.items()])


def end_attempt(
    tx: Connection, attempt: AttemptRecord, exit: Exit, *, started_at: float | None, ended_at: float
) -> None:
    """Guarded: an attempt ends once."""
    done = tx.execute(
        update(attempts)
        .where(attempts.c.id == attempt.id, attempts.c.state != AttemptState.ENDED)
        .values(state=AttemptState.ENDED, started_at=started_at, ended_at=ended_at, exit=exit_to_json(exit))
    )
    if done.rowcount != 1:
        raise ChangedMeanwhile(f"attempt {attempt.id} has ended before")


def load_attempts(tx: Connection, run_id: str) -> list[AttemptRecord]:
    rows = tx.execute(select(attempts).where(attempts.c.run_id == run_id).order_by(attempts.c.number))
    return [attempt_from_row(row) for row in rows]


def load_attempts_of(tx: Connection, run_ids: Sequence[str]) -> list[AttemptRecord]:
    rows = tx.execute(select(attempts).where(attempts.c.run_id.in_(list(run_ids))).order_by(attempts.c.number))
    return [attempt_from_row(row) for row in rows]


class UnarchivedLogs(NamedTuple):
    released_at: float
    attempt_id: str
    log_dirs: tuple[str, ...]


def load_live_attempts(tx: Connection, slots: Slots = None) -> list[AttemptRecord]:
    return [attempt_from_row(row) for row in tx.execute(select(attempts).where(_live(slots)))]


def _live(slots: Slots) -> ColumnElement[bool]:
    live = attempts.c.state.in_([AttemptState.STARTING, AttemptState.RUNNING])
    return live if slots is None else and_(live, attempts.c.slot.in_(sorted(slots)))


def load_live_log_dirs(tx: Connection, slots: Slots = None) -> list[tuple[str, str, tuple[str, ...]]]:
    """(run id, attempt id, folders) of live attempts that write logs and spools."""
    rows = tx.execute(select(attempts.c.run_id, attempts.c.id, attempts.c.log_dirs).where(_live(slots)))
    return [(row.run_id, row.id, tuple(row.log_dirs)) for row in rows if row.log_dirs]


def load_unreleased(tx: Connection, slots: Slots = None, *, limit: int = 500) -> list[tuple[str, str]]:
    """(attempt id, engine) of those whose end is on record but which the engine still keeps."""
    # The state is looked at here: SQLite would go by its index and through every attempt that has ever ended.
    rows = tx.execute(
        select(attempts.c.id, attempts.c.engine, attempts.c.state, attempts.c.slot).where(
            attempts.c.released_at.is_(None)
        )
    )
    ended = (row for row in rows if row.state == AttemptState.ENDED and (slots is None or row.slot in slots))
    return [(row.id, row.engine) for row in islice(ended, limit)]


def mark_released(tx: Connection, attempt_ids: Sequence[str], *, now: float) -> None:
    tx.execute(update(attempts).where(attempts.c.id.in_(list(attempt_ids))).values(released_at=now))


def load_unarchived(
    tx: Connection, slots: Slots = None, *, after: tuple[float, str] = (0.0, ""), limit: int = 100
) -> list[UnarchivedLogs]:
    """Released attempts whose logs are not in the blobs, in order of release."""
    waiting = and_(attempts.c.released_at.is_not(None), attempts.c.archived_at.is_(None))
    place = tuple_(attempts.c.released_at, attempts.c.id)
    query = select(attempts.c.released_at, attempts.c.id, attempts.c.log_dirs).where(waiting, place > tuple_(*after))
    if slots is not None:
        query = query.where(attempts.c.slot.in_(sorted(slots)))
    rows = tx.execute(query.order_by(attempts.c.released_at, attempts.c.id).limit(limit))
    return [UnarchivedLogs(row.released_at, row.id, tuple(row.log_dirs)) for row in rows]


def mark_archived(tx: Connection, attempt_id: str, log_dirs: Sequence[str], *, now: float) -> None:
    """From here on its logs are read where the archive has them."""
    mine = and_(attempts.c.id == attempt_id, attempts.c.archived_at.is_(None))
    tx.execute(update(attempts).where(mine).values(archived_at=now, log_dirs=list(log_dirs)))


def load_exits(tx: Connection, run: RunRecord) -> list[Exit]:
    """How the attempts since submission or the last resume ended."""
    ended = (a for a in load_attempts(tx, run.id) if a.number >= run.first_attempt)
    return [attempt.exit for attempt in ended if attempt.exit is not None]


def put_environment(tx: Connection, data: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    known = tx.execute(select(environments.c.digest).where(environments.c.digest == digest)).first()
    if known is None:
        tx.execute(insert(environments).values(digest=digest, data=dict(data)))
    return digest


def load_environments(tx: Connection, digests: Iterable[str | None]) -> dict[str, Mapping[str, Any]]:
    wanted = {digest for digest in digests if digest}
    if not wanted:
        return {}
    rows = tx.execute(select(environments).where(environments.c.digest.in_(wanted)))
    return {row.digest: row.data for row in rows}


# ---- events --------------------------------------------------------------------------------------------------------


def record_event(
    tx: Connection,
    run_id: str,
    kind: EventKind,
    *,
    at: float,
    message: str,
    attempt: int | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    tx.execute(
        insert(events).values(
            run_id=run_id, kind=kind, at=at, message=message, attempt=attempt, data=dict(data) if data else {}
        )
    )


def load_events(tx: Connection, run_id: str, *, after: int = 0, limit: int = 1_000) -> list[Any]:
    query = select(events).where(events.c.run_id == run_id, events.c.seq > after).order_by(events.c.seq).limit(limit)
    return list(tx.execute(query))
