"""Reading and writing runs, attempts and events. Functions over an open transaction; `advance` is the only one that
changes a run's state, always together with the event that says so and guarded by the version it was decided on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, func, insert, select, tuple_, update

from windlass.core.errors import Conflict
from windlass.core.exits import Exit
from windlass.core.ids import attempt_id, slot_of
from windlass.core.resources import Placement
from windlass.db.insertion import insert_missing
from windlass.runs.announcements import announcements
from windlass.runs.bulk import in_parts, update_each
from windlass.runs.records import (
    AttemptRecord,
    GivingWay,
    RunHead,
    RunRecord,
    attempt_from_row,
    ended_attempt,
    exit_to_json,
    head_from_row,
    placement_from_json,
    placement_to_json,
    run_from_row,
)
from windlass.runs.retry import Ended
from windlass.runs.tables import attempts, environments, events, runs
from windlass.runs.tracked import follow, insert_tracked
from windlass.runs.types import STATE_AFTER, AttemptState, EventKind, RunState, transition
from windlass.webhooks.outbox import put_events

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
    insert_tracked(tx, values)


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
    found = (tx.execute(select(runs).where(runs.c.id.in_(some))).all() for some in in_parts(run_ids))
    return [run_from_row(row) for rows in found for row in rows]


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
    move = Move(run=run, kind=kind, message=message, attempt=attempt, data=data or {}, changes=changes)
    advance_all(tx, [move], now=now)


def lock_runs(tx: Connection, run_ids: Iterable[str]) -> None:
    """Let nobody else change these runs until this transaction ends. Whoever changes several does this first: all take
    them by id, and nobody waits for somebody who waits for him. SQLite has one writer at a time anyway."""
    if tx.dialect.name == "postgresql":
        for some in in_parts(sorted(set(run_ids))):
            held = select(runs.c.id).where(runs.c.id.in_(some)).order_by(runs.c.id)
            tx.execute(held.with_for_update(key_share=True))  # so that others can add events to them


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One step of one run; what `advance` is told of it."""

    run: RunRecord
    kind: EventKind
    message: str
    attempt: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)


def advance_all(tx: Connection, moves: Sequence[Move], *, now: float) -> None:
    """`advance` for many runs in a few statements. ChangedMeanwhile then says that some run was changed, not which,
    and the transaction must be given up."""
    if len(moves) > 1:
        lock_runs(tx, [move.run.id for move in moves])
    targets = [transition(move.run.state, STATE_AFTER[move.kind]) for move in moves]
    _update_guarded(
        tx, [(move.run, {**move.changes, "state": target}) for move, target in zip(moves, targets, strict=True)]
    )
    follow(tx, [(m.run.id, m.run.state, target, m.changes) for m, target in zip(moves, targets, strict=True)])
    _record_events(
        tx,
        [
            {
                "run_id": move.run.id,
                "kind": move.kind,
                "at": now,
                "message": move.message,
                "attempt": move.attempt,
                "data": dict(move.data),
            }
            for move in moves
        ],
    )


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
    _update_guarded(tx, [(run, changes)])
    record_event(tx, run.id, kind, at=now, message=message, attempt=run.attempt_count or None, data=data)


def _update_guarded(tx: Connection, changed: Sequence[tuple[RunRecord, Mapping[str, Any]]]) -> None:
    steps = [
        ({"id": run.id, "version": run.version}, {"version": run.version + 1, **changes}) for run, changes in changed
    ]
    if update_each(tx, runs, steps) != len(changed):
        which = f"run {changed[0][0].id}" if len(changed) == 1 else f"one of {len(changed)} runs"
        raise ChangedMeanwhile(f"{which} was changed by someone else at the same moment", hint="try again")


# ---- attempts ------------------------------------------------------------------------------------------------------


def insert_attempt(tx: Connection, run: RunRecord, placement: Placement, *, now: float) -> str:
    return insert_attempts(tx, [(run, placement)], now=now)[0]


def insert_attempts(
    tx: Connection,
    placed: Sequence[tuple[RunRecord, Placement]],
    *,
    now: float,
    usd_per_hour: Mapping[str, float] | None = None,
) -> list[str]:
    """`usd_per_hour`: by run, what its placement costs."""
    rows: list[dict[str, Any]] = [
        {
            "id": attempt_id(run.id, run.attempt_count + 1),
            "run_id": run.id,
            "number": run.attempt_count + 1,
            "state": AttemptState.STARTING,
            "engine": placement.engine,
            "placement": placement_to_json(placement),
            "created_at": now,
            "queued_at": run.waits_since,
            "log_dirs": [],
            "slot": slot_of(run.id),
            "usd_per_hour": (usd_per_hour or {}).get(run.id),
        }
        for run, placement in placed
    ]
    if rows:
        tx.execute(insert(attempts), rows)
    return [row["id"] for row in rows]


def update_attempt(tx: Connection, attempt_id: str, **changes: Any) -> None:
    update_attempts(tx, {attempt_id: changes})


def update_attempts(tx: Connection, changed: Mapping[str, Mapping[str, Any]]) -> None:
    update_each(tx, attempts, [({"id": attempt_id}, changes) for attempt_id, changes in changed.items()])


def end_attempt(
    tx: Connection,
    attempt: AttemptRecord,
    exit: Exit,
    *,
    started_at: float | None,
    ended_at: float,
    outputs_in: str | None = None,
) -> None:
    """Guarded: an attempt ends once. `outputs_in`: the folder whose files are to become artifacts."""
    values = {"started_at": started_at, "ended_at": ended_at, "exit": exit_to_json(exit), "outputs_in": outputs_in}
    done = tx.execute(
        update(attempts)
        .where(attempts.c.id == attempt.id, attempts.c.state != AttemptState.ENDED)
        .values(state=AttemptState.ENDED, **values)
    )
    if done.rowcount != 1:
        raise ChangedMeanwhile(f"attempt {attempt.id} has ended before")


def give_way(tx: Connection, found: Mapping[str, GivingWay]) -> None:
    """By run: its live attempt is to be stopped. One that has ended, or gives way already, is left as it is."""
    for run_id, why in found.items():
        mine = and_(attempts.c.run_id == run_id, attempts.c.giving_way.is_(None), _live(None))
        tx.execute(update(attempts).where(mine).values(giving_way=asdict(why)))


def load_attempts(tx: Connection, run_id: str) -> list[AttemptRecord]:
    rows = tx.execute(select(attempts).where(attempts.c.run_id == run_id).order_by(attempts.c.number))
    return [attempt_from_row(row) for row in rows]


def load_attempts_of(tx: Connection, run_ids: Sequence[str]) -> list[AttemptRecord]:
    rows = tx.execute(select(attempts).where(attempts.c.run_id.in_(list(run_ids))).order_by(attempts.c.number))
    return [attempt_from_row(row) for row in rows]


def load_attempts_by_id(tx: Connection, attempt_ids: Sequence[str]) -> list[AttemptRecord]:
    found = (tx.execute(select(attempts).where(attempts.c.id.in_(some))).all() for some in in_parts(attempt_ids))
    return [attempt_from_row(row) for rows in found for row in rows]


class AttemptMark(NamedTuple):
    """Tells whether a live attempt and its run are still as they were loaded before, but for the attempt's usage and
    the places of its logs."""

    id: str
    run_id: str
    run_version: int
    state: str
    started_at: float | None
    environment_digest: str | None
    detail: str | None
    unknown_since: float | None
    giving_way: Mapping[str, Any] | None
    saved_at: float | None
    recovered_at: float | None


def load_live_marks(tx: Connection, slots: Slots = None) -> list[AttemptMark]:
    own = (attempts.c[name] for name in AttemptMark._fields if name not in ("run_version", "id", "run_id"))
    joined = attempts.join(runs, attempts.c.run_id == runs.c.id)
    query = select(attempts.c.id, attempts.c.run_id, runs.c.version, *own).select_from(joined).where(_live(slots))
    return [AttemptMark._make(row) for row in tx.execute(query).all()]


def load_held(tx: Connection) -> dict[str, Placement]:
    """What the live attempt of each run holds."""
    rows = tx.execute(select(attempts.c.run_id, attempts.c.placement).where(_live(None))).all()
    return {row.run_id: placement_from_json(row.placement) for row in rows}


def _live(slots: Slots) -> ColumnElement[bool]:
    live = attempts.c.state.in_([AttemptState.STARTING, AttemptState.RUNNING])
    return live if slots is None else and_(live, attempts.c.slot.in_(sorted(slots)))


def load_live_log_dirs(tx: Connection, slots: Slots = None) -> list[tuple[str, str, tuple[str, ...]]]:
    """(run id, attempt id, folders) of live attempts that write logs and spools."""
    rows = tx.execute(select(attempts.c.run_id, attempts.c.id, attempts.c.log_dirs).where(_live(slots)))
    return [(row.run_id, row.id, tuple(row.log_dirs)) for row in rows if row.log_dirs]


def load_history(tx: Connection, run: RunRecord) -> list[Ended]:
    """The attempts since submission or the last resume that have ended."""
    history: list[Ended] = []
    for attempt in load_attempts(tx, run.id):
        if attempt.number >= run.first_attempt and attempt.exit is not None:
            history.append(ended_attempt(attempt, attempt.exit, history[-1] if history else None))
    return history


def put_environments(tx: Connection, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The digest of each, in their order."""
    digests = [hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest() for data in found]
    wanted = dict(zip(digests, found, strict=True))
    known = load_environments(tx, wanted)
    new = [{"digest": digest, "data": dict(wanted[digest])} for digest in sorted(wanted.keys() - known.keys())]
    insert_missing(tx, environments, new)  # another controller's runs may have the same
    return digests


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
    row = {"run_id": run_id, "kind": kind, "at": at, "message": message, "attempt": attempt, "data": dict(data or {})}
    _record_events(tx, [row])


def _record_events(tx: Connection, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        tx.execute(insert(events), rows)
        put_events(tx, announcements(rows))


def has_event(tx: Connection, run_id: str, kind: EventKind, *, attempt: int, message: str) -> bool:
    found = select(events.c.seq).where(
        events.c.run_id == run_id, events.c.kind == kind, events.c.attempt == attempt, events.c.message == message
    )
    return tx.execute(found.limit(1)).first() is not None


def load_events(tx: Connection, run_id: str, *, after: int = 0, limit: int = 1_000) -> list[Any]:
    query = select(events).where(events.c.run_id == run_id, events.c.seq > after).order_by(events.c.seq).limit(limit)
    return list(tx.execute(query))
