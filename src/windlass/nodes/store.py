"""Writing and reading what is known of nodes. Every change is guarded by what it rests on, or made on a locked row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, or_, select, tuple_, update

from windlass.agent import outcome
from windlass.nodes.tables import attempt_nodes
from windlass.runs.tables import attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    attempt_id: str
    node_rank: int
    plan: Mapping[str, Any]
    secrets: bytes | None
    incarnation: str | None
    host: str | None
    address: str | None
    port: int | None
    fetched_at: float | None
    reported_at: float | None
    status: Mapping[str, Any] | None
    outcome: Mapping[str, Any] | None
    usage: Mapping[str, Any] | None
    environment: Mapping[str, Any] | None
    notice: Mapping[str, Any] | None
    stop: Mapping[str, Any] | None
    closed_at: float | None


NodeKey = tuple[str, int]  # attempt and node rank


class Version(NamedTuple):
    number: int
    reported_at: float | None  # renewed more often than the number: being heard of is no change


_REPORTED = frozenset(("address", "status", "outcome", "usage", "environment", "notice"))
_COLUMNS = [attempt_nodes.c[field.name] for field in fields(NodeRecord)]


def insert_nodes(tx: Connection, attempt_id: str, plans: Sequence[Mapping[str, Any]], secrets: bytes | None) -> None:
    """Unless they are there: the plans of an attempt are all written in one transaction, and never changed."""
    there = select(func.count()).select_from(attempt_nodes).where(attempt_nodes.c.attempt_id == attempt_id)
    if tx.execute(there).scalar():
        return
    rows = [
        {"attempt_id": attempt_id, "node_rank": rank, "plan": dict(plan), "secrets": secrets}
        for rank, plan in enumerate(plans)
    ]
    tx.execute(insert(attempt_nodes), rows)


def load_node(tx: Connection, attempt_id: str, node_rank: int, *, lock: bool = False) -> NodeRecord | None:
    """With `lock`, nobody else changes the node before this transaction ends."""
    query = select(*_COLUMNS).where(_is(attempt_id, node_rank))
    row = tx.execute(query.with_for_update() if lock else query).first()
    return _record(row) if row else None


def load_nodes(tx: Connection, attempt_id: str, *, lock: bool = False) -> list[NodeRecord]:
    query = select(*_COLUMNS).where(attempt_nodes.c.attempt_id == attempt_id).order_by(attempt_nodes.c.node_rank)
    return [_record(row) for row in tx.execute(query.with_for_update() if lock else query)]


def load_versions(tx: Connection, attempt_ids: Sequence[str]) -> dict[NodeKey, Version]:
    """Of the nodes of these attempts, in order of their ranks."""
    columns = attempt_nodes.c
    query = select(columns.attempt_id, columns.node_rank, columns.version, columns.reported_at)
    query = query.where(columns.attempt_id.in_(list(attempt_ids))).order_by(columns.attempt_id, columns.node_rank)
    return {(row.attempt_id, row.node_rank): Version(row.version, row.reported_at) for row in tx.execute(query)}


def load_reports(tx: Connection, attempt_ids: Collection[str], *, with_environment: bool) -> Sequence[Row[Any]]:
    """What the nodes of these attempts have told; without plans and secrets, which are for nodes only."""
    if not attempt_ids:
        return []
    columns = attempt_nodes.c
    wanted = [
        columns.attempt_id,
        columns.node_rank,
        columns.version,
        columns.reported_at,
        columns.address,
        columns.status,
        columns.outcome,
        columns.usage,
        columns.notice,
        *([columns.environment] if with_environment else []),
    ]
    return tx.execute(select(*wanted).where(columns.attempt_id.in_(list(attempt_ids)))).all()


def load_addresses(tx: Connection, attempt_id: str) -> list[tuple[str | None, int | None]]:
    columns = attempt_nodes.c
    query = select(columns.address, columns.port).where(columns.attempt_id == attempt_id).order_by(columns.node_rank)
    return [(row.address, row.port) for row in tx.execute(query)]


def update_node(tx: Connection, attempt_id: str, node_rank: int, values: Mapping[str, Any]) -> None:
    changed = {"version": attempt_nodes.c.version + 1} if _REPORTED & values.keys() else {}
    tx.execute(update(attempt_nodes).where(_is(attempt_id, node_rank)).values(**values, **changed))


def wish_to_stop(tx: Connection, attempt_id: str, wish: Mapping[str, Any], *, now: float) -> None:
    """Nodes that have their plan will be told; the others end here, before they began. Wishes hasten, never slow, and
    the first one's kind stands."""
    for node in load_nodes(tx, attempt_id, lock=True):
        if node.outcome is not None or node.closed_at is not None:
            continue
        stop = dict(wish)
        if node.stop is not None:
            stop = {**node.stop, "grace_s": min(node.stop["grace_s"], wish["grace_s"])}
        values: dict[str, Any] = {"stop": stop}
        if node.fetched_at is None:
            values["outcome"] = outcome.never_started(stop["kind"], stop["reason"], now)
        update_node(tx, attempt_id, node.node_rank, values)


def close(tx: Connection, attempt_id: str, *, now: float) -> None:
    columns = attempt_nodes.c
    tx.execute(
        update(attempt_nodes)
        .where(columns.attempt_id == attempt_id, columns.closed_at.is_(None))
        # What its owner gave it is not kept longer than needed; what it ran with is part of the run's record by now.
        .values(closed_at=now, plan={}, secrets=None, environment=None, usage=None)
    )


def delete_nodes(tx: Connection, *, before: float, limit: int) -> int:
    """Of attempts that were closed before that time, or released without it, because their engine is configured no
    more. How many; a relay that still comes hears that it is over, as it would have."""
    columns = attempt_nodes.c
    released = select(attempts.c.id).where(attempts.c.released_at < before)
    old = or_(columns.closed_at < before, and_(columns.closed_at.is_(None), columns.attempt_id.in_(released)))
    found = tx.execute(select(columns.attempt_id, columns.node_rank).where(old).limit(limit)).all()
    if found:
        key = tuple_(columns.attempt_id, columns.node_rank)
        tx.execute(delete(attempt_nodes).where(key.in_([tuple(row) for row in found])))
    return len(found)


def count_open(tx: Connection) -> int:
    query = select(func.count()).select_from(attempt_nodes).where(attempt_nodes.c.closed_at.is_(None))
    return int(tx.execute(query).scalar_one())


def _is(attempt_id: str, node_rank: int) -> ColumnElement[bool]:
    return and_(attempt_nodes.c.attempt_id == attempt_id, attempt_nodes.c.node_rank == node_rank)


def _record(row: Row[Any]) -> NodeRecord:
    return NodeRecord(**row._mapping)
