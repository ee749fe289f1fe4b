"""Nodes that are set aside: for a while because something broke on them, or by hand. What is placed avoids them.

A node that breaks again soon after it was back is set aside for twice as long each time. Rows of nodes that are back
stay, for that; giving one back by hand forgets what was.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Row,
    String,
    Table,
    Text,
    and_,
    delete,
    or_,
    select,
)

from windlass.core.errors import Ambiguous, NotFound
from windlass.core.names import nearest
from windlass.db.insertion import insert_or_replace
from windlass.db.metadata import Seconds, metadata
from windlass.scheduling.nodes import load_nodes
from windlass.scheduling.types import Aside, NodeKey

LONGEST_S = 24 * 3600.0
FORGOTTEN_AFTER_S = 24 * 3600.0  # one that was well for so long starts at the first time again

set_aside = Table(
    "set_aside",
    metadata,
    Column("engine", String(32), primary_key=True),
    Column("node", String(200), primary_key=True),
    Column("reason", Text, nullable=False),
    Column("since", Seconds, nullable=False),
    Column("until", Seconds),  # null: until somebody gives it back
    Column("times", Integer, nullable=False),
    Column("by_hand", Boolean, nullable=False),
    Column("run_id", String(32)),  # whose failure it was
)


def decide_aside(known: Aside | None, reason: str, first_s: float, *, now: float, run_id: str | None = None) -> Aside:
    """What is to be kept of a node that something broke on; `first_s`: for how long, the first time. One that is set
    aside already stays so, and for no longer: the runs that were on it fail together."""
    if known is not None and known.holds(now):
        return known
    recent = known is not None and not known.by_hand and now - (known.until or now) < FORGOTTEN_AFTER_S
    times = known.times + 1 if known is not None and recent else 1
    for_s = min(first_s * 2.0 ** min(times - 1, 16), LONGEST_S)
    return Aside(reason=reason, since=now, until=now + for_s, times=times, run_id=run_id)


def load_aside(tx: Connection, *, now: float) -> dict[NodeKey, Aside]:
    """Those that are set aside now."""
    rows = tx.execute(select(set_aside).where(or_(set_aside.c.until.is_(None), set_aside.c.until > now)))
    return {(row.engine, row.node): _aside(row) for row in rows}


def load_last_aside(tx: Connection, node: NodeKey) -> Aside | None:
    """As it is now, or was last."""
    row = tx.execute(select(set_aside).where(_is(node))).first()
    return _aside(row) if row else None


def commit_aside(tx: Connection, node: NodeKey, aside: Aside) -> None:
    """Another controller may do so at the same moment, for a run of its own that failed there too."""
    row = {
        "engine": node[0],
        "node": node[1],
        "reason": aside.reason,
        "since": aside.since,
        "until": aside.until,
        "times": aside.times,
        "by_hand": aside.by_hand,
        "run_id": aside.run_id,
    }
    insert_or_replace(tx, set_aside, row)


def commit_back(tx: Connection, node: NodeKey) -> None:
    tx.execute(delete(set_aside).where(_is(node)))


def find_node(tx: Connection, name: str, engine: str | None) -> NodeKey:
    """The node that is meant, among those that engines have and those that are set aside."""
    there = {(node.engine, node.name) for node in load_nodes(tx)}
    there |= {(row.engine, row.node) for row in tx.execute(select(set_aside.c.engine, set_aside.c.node))}
    meant = sorted(key for key in there if key[1] == name and engine in (None, key[0]))
    if len(meant) > 1:
        raise Ambiguous(f"node '{name}' is on several engines: {', '.join(key[0] for key in meant)}; name one of them")
    if not meant:
        guess = nearest(name, {key[1] for key in there})
        where = f" on engine '{engine}'" if engine else ""
        hint = f"did you mean {guess!r}?" if guess else "`windlass nodes ls` lists them"
        raise NotFound(f"there is no node '{name}'{where}", hint=hint)
    return meant[0]


def _is(node: NodeKey) -> ColumnElement[bool]:
    return and_(set_aside.c.engine == node[0], set_aside.c.node == node[1])


def _aside(row: Row[Any]) -> Aside:
    return Aside(
        reason=row.reason,
        since=row.since,
        until=row.until,
        times=row.times,
        by_hand=row.by_hand,
        run_id=row.run_id,
    )
