"""Review queues: traces that people look through together, and how far they have come. One transaction each.

A queue of kind `user` is somebody's own, has that name, and asks all questions of its experiment. One of kind `custom`
has a pool of people, any of whom may deal with an item, and questions that were chosen for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from windlass.core.clock import Clock
from windlass.core.errors import AlreadyExists, InvalidInput, NotFound
from windlass.core.paging import offset_of, page_token
from windlass.db.database import Database
from windlass.db.insertion import insert_missing, insert_new
from windlass.evaluation import reviewrules as rules
from windlass.evaluation.labels import load_known
from windlass.evaluation.tables import review_items, review_queues, review_schemas, review_users
from windlass.experiments.catalogue import load_experiment
from windlass.experiments.rules import experiment_number
from windlass.experiments.types import View
from windlass.traces.tables import traces


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewQueue:
    id: str
    experiment_id: int
    name: str
    kind: str  # user or custom
    created_by: str | None
    created_ms: int
    updated_ms: int
    users: Sequence[str]
    schema_ids: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewItem:
    queue_id: str
    trace_id: str
    status: str  # pending, complete or declined
    completed_by: str | None
    completed_ms: int | None
    created_ms: int
    updated_ms: int


class ReviewService:
    def __init__(self, *, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    # ---- queues ----------------------------------------------------------------------------------------------------

    def create(
        self,
        experiment_id: str,
        *,
        name: str,
        kind: str,
        users: Sequence[str],
        schema_ids: Sequence[str],
        created_by: str | None = None,
    ) -> ReviewQueue:
        wanted = rules.checked_queue(name=name, kind=kind, users=users, schema_ids=schema_ids)
        number, now_ms = experiment_number(experiment_id), self._now_ms()
        queue = ReviewQueue(
            id=f"rq-{uuid.uuid4().hex}",
            experiment_id=number,
            name=wanted.name,
            kind=kind,
            created_by=created_by,
            created_ms=now_ms,
            updated_ms=now_ms,
            users=sorted(wanted.users),
            schema_ids=sorted(wanted.schema_ids),
        )
        with self._db.write() as tx:
            load_experiment(tx, number, View.ACTIVE_ONLY)
            _check_schemas(tx, number, wanted.schema_ids)
            if not insert_new(tx, review_queues, _row(queue)):
                raise _taken(queue.name)
            _put_members(tx, review_users, queue.id, "user_id", queue.users)
            _put_members(tx, review_schemas, queue.id, "schema_id", queue.schema_ids)
        return queue

    def queue_of(self, experiment_id: str, user: str) -> ReviewQueue:
        """Somebody's own, which is made when it is first asked for."""
        name = rules.plain_user(user)
        try:
            return self.create(experiment_id, name=name, kind="user", users=(), schema_ids=(), created_by=name)
        except AlreadyExists as error:
            found = self.get_named(experiment_id, name)
            if found.kind != "user":
                raise AlreadyExists(
                    f"A non-user queue named '{name}' already exists; cannot get-or-create a user queue with that name."
                ) from error
            return found

    def get(self, queue_id: str) -> ReviewQueue:
        with self._db.read() as tx:
            return _load(tx, queue_id)

    def get_named(self, experiment_id: str, name: str) -> ReviewQueue:
        number = experiment_number(experiment_id)
        with self._db.read() as tx:
            load_experiment(tx, number, View.ACTIVE_ONLY)
            query = select(review_queues).where(
                review_queues.c.experiment_id == number, review_queues.c.name_key == name.lower()
            )
            row = tx.execute(query).one_or_none()
            if row is None:
                raise NotFound(f"Review queue with name '{name}' not found for experiment '{experiment_id}'.")
            return _hydrated(tx, [row])[0]

    def list(
        self, experiment_id: str, *, user: str | None, trace_id: str | None, most: int, token: str | None
    ) -> tuple[Sequence[ReviewQueue], str | None]:
        """The newest first; only those that somebody is to look after, or that have a trace."""
        number, offset = experiment_number(experiment_id), offset_of(token)
        query = select(review_queues).where(review_queues.c.experiment_id == number)
        if user is not None:
            theirs = select(review_users.c.queue_id).where(review_users.c.user_id == rules.plain_user(user))
            query = query.where(review_queues.c.id.in_(theirs))
        if trace_id is not None:
            having = select(review_items.c.queue_id).where(review_items.c.trace_id == trace_id)
            query = query.where(review_queues.c.id.in_(having))
        query = query.order_by(review_queues.c.created_ms.desc(), review_queues.c.id).offset(offset).limit(most + 1)
        with self._db.read() as tx:
            load_experiment(tx, number, View.ACTIVE_ONLY)
            rows = tx.execute(query).all()
            found = _hydrated(tx, rows[:most])
        return found, page_token(offset + most) if len(rows) > most else None

    def update(
        self,
        queue_id: str,
        *,
        name: str | None,
        owner: str | None,
        users: Sequence[str] | None,
        schema_ids: Sequence[str] | None,
    ) -> ReviewQueue:
        with self._db.write() as tx:
            held = _load(tx, queue_id, lock=True)
            if held.kind == "user":
                raise InvalidInput(
                    "A user queue's name, assigned user, schemas, and owner are fixed and cannot be updated."
                )
            if name is None and owner is None and users is None and schema_ids is None:
                return held
            changed = replace(
                held,
                name=held.name if name is None else rules.checked_name(name),
                created_by=held.created_by if owner is None else rules.checked_owner(owner),
                users=held.users if users is None else sorted(rules.checked_users(users)),
                schema_ids=held.schema_ids if schema_ids is None else sorted(rules.checked_schemas(schema_ids)),
                updated_ms=self._now_ms(),
            )
            if schema_ids is not None:
                _check_unlocked(tx, queue_id)
                _check_schemas(tx, held.experiment_id, changed.schema_ids)
                _put_members(tx, review_schemas, queue_id, "schema_id", changed.schema_ids)
            if users is not None:
                _put_members(tx, review_users, queue_id, "user_id", changed.users)
            _check_free(tx, changed)
            try:
                tx.execute(update(review_queues).where(review_queues.c.id == queue_id).values(**_row(changed)))
            except IntegrityError as error:  # somebody else took the name at the same moment
                raise _taken(changed.name) from error
        return changed

    def delete(self, queue_id: str) -> None:
        """Nothing happens if there is none. What people said of its traces stays."""
        with self._db.write() as tx:
            tx.execute(delete(review_queues).where(review_queues.c.id == queue_id))

    # ---- items -----------------------------------------------------------------------------------------------------

    def add(self, queue_id: str, trace_ids: Sequence[str]) -> Sequence[ReviewItem]:
        """All or none. Those that are in it already stay as they are."""
        wanted, now_ms = rules.checked_items(trace_ids), self._now_ms()
        with self._db.write() as tx:
            queue = _load(tx, queue_id, lock=True)
            there = select(traces.c.id).where(traces.c.id.in_(wanted), traces.c.experiment_id == queue.experiment_id)
            # Locked, so that none is deleted before its item is there; in order, so that no two wait for each other.
            there = there.order_by(traces.c.id).with_for_update(read=True, key_share=True)
            known = set(tx.execute(there).scalars())
            if missing := [one for one in wanted if one not in known]:
                raise NotFound(
                    f"Cannot attach trace(s) {missing} to review queue '{queue_id}':"
                    f" they do not exist in experiment '{queue.experiment_id}'."
                )
            fresh = {"status": "pending", "created_ms": now_ms, "updated_ms": now_ms}
            rows = [{"queue_id": queue_id, "trace_id": one, **fresh} for one in sorted(wanted)]
            insert_missing(tx, review_items, rows)
            query = select(review_items).where(review_items.c.queue_id == queue_id, review_items.c.trace_id.in_(wanted))
            found = {row.trace_id: _item(row) for row in tx.execute(query)}
        return [found[one] for one in wanted if one in found]

    def remove(self, queue_id: str, trace_ids: Sequence[str]) -> None:
        wanted = rules.checked_items(trace_ids)
        with self._db.write() as tx:
            _load(tx, queue_id)
            mine = delete(review_items).where(review_items.c.queue_id == queue_id)
            tx.execute(mine.where(review_items.c.trace_id.in_(wanted)))

    def items(
        self, queue_id: str, *, status: str | None, most: int, token: str | None
    ) -> tuple[Sequence[ReviewItem], str | None]:
        """The newest first."""
        offset = offset_of(token)
        query = select(review_items).where(review_items.c.queue_id == queue_id)
        if status is not None:
            query = query.where(review_items.c.status == status)
        order = review_items.c.created_ms.desc(), review_items.c.trace_id
        with self._db.read() as tx:
            _load(tx, queue_id)
            rows = tx.execute(query.order_by(*order).offset(offset).limit(most + 1)).all()
        return [_item(row) for row in rows[:most]], page_token(offset + most) if len(rows) > most else None

    def set_status(self, queue_id: str, trace_id: str, *, status: str, completed_by: str | None) -> ReviewItem:
        """Who completes what is complete already changes nothing: the first one did it."""
        trace_id, by = trace_id.strip(), rules.checked_actor(status, completed_by)
        with self._db.write() as tx:
            _load(tx, queue_id, lock=True)
            mine = (review_items.c.queue_id == queue_id, review_items.c.trace_id == trace_id)
            row = tx.execute(select(review_items).where(*mine)).one_or_none()
            if row is None:
                raise NotFound(f"Item '{trace_id}' is not attached to review queue '{queue_id}'.")
            held = _item(row)
            if held.status == status:
                return held
            now_ms = self._now_ms()
            done_ms = None if by is None else now_ms
            changes: dict[str, Any] = {"completed_by": by, "completed_ms": done_ms, "updated_ms": now_ms}
            tx.execute(update(review_items).where(*mine).values(status=status, **changes))
        return replace(held, status=status, **changes)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


# ---- over an open transaction --------------------------------------------------------------------------------------


def _load(tx: Connection, queue_id: str, *, lock: bool = False) -> ReviewQueue:
    """`lock`: questions are not to change while items are added, nor the other way round."""
    query = select(review_queues).where(review_queues.c.id == queue_id)
    row = tx.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFound(f"Review queue with id '{queue_id}' not found.")
    return _hydrated(tx, [row])[0]


def _hydrated(tx: Connection, rows: Sequence[Row[Any]]) -> list[ReviewQueue]:
    ids = [row.id for row in rows]
    users: dict[str, list[str]] = {one: [] for one in ids}
    schemas: dict[str, list[str]] = {one: [] for one in ids}
    theirs = select(review_users).where(review_users.c.queue_id.in_(ids)).order_by(review_users.c.user_id)
    asked = select(review_schemas).where(review_schemas.c.queue_id.in_(ids)).order_by(review_schemas.c.schema_id)
    for row in tx.execute(theirs):
        users[row.queue_id].append(row.user_id)
    for row in tx.execute(asked):
        schemas[row.queue_id].append(row.schema_id)
    found = []
    for row in rows:
        values = {name: value for name, value in row._mapping.items() if name != "name_key"}
        found.append(ReviewQueue(**values, users=users[row.id], schema_ids=schemas[row.id]))
    return found


def _put_members(tx: Connection, table: Table, queue_id: str, column: str, members: Iterable[str]) -> None:
    tx.execute(delete(table).where(table.c.queue_id == queue_id))
    if rows := [{"queue_id": queue_id, column: one} for one in members]:
        tx.execute(insert(table), rows)


def _check_schemas(tx: Connection, experiment_id: int, schema_ids: Sequence[str]) -> None:
    known = load_known(tx, experiment_id, schema_ids) if schema_ids else set()
    if missing := [one for one in schema_ids if one not in known]:
        raise InvalidInput(f"Label schema id(s) {missing} not found for experiment '{experiment_id}'.")


def _check_unlocked(tx: Connection, queue_id: str) -> None:
    """Whoever has answered already would have answered something else."""
    if tx.execute(select(review_items.c.trace_id).where(review_items.c.queue_id == queue_id).limit(1)).first():
        raise InvalidInput(
            "A review queue's questions are locked once items are assigned to it."
            " Remove the items before changing its questions."
        )


def _check_free(tx: Connection, queue: ReviewQueue) -> None:
    same = (review_queues.c.experiment_id == queue.experiment_id, review_queues.c.name_key == queue.name.lower())
    if tx.execute(select(review_queues.c.id).where(*same, review_queues.c.id != queue.id)).first():
        raise _taken(queue.name)


def _taken(name: str) -> AlreadyExists:
    return AlreadyExists(f"Review queue with name '{name}' already exists (names are case-insensitive).")


def _row(queue: ReviewQueue) -> dict[str, Any]:
    return {
        "id": queue.id,
        "experiment_id": queue.experiment_id,
        "name": queue.name,
        "name_key": queue.name.lower(),
        "kind": queue.kind,
        "created_by": queue.created_by,
        "created_ms": queue.created_ms,
        "updated_ms": queue.updated_ms,
    }


def _item(row: Row[Any]) -> ReviewItem:
    return ReviewItem(**row._mapping)
