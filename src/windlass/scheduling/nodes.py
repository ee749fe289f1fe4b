"""The nodes that engines reported: how the API knows what could run, without knowing any engine."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Integer,
    Select,
    String,
    Table,
    Text,
    delete,
    false,
    func,
    insert,
    select,
)

from windlass.core.resources import Node
from windlass.db.metadata import Seconds, metadata
from windlass.scheduling.types import NodeKind

_AT_ONCE = 5_000  # names in one question

nodes = Table(
    "nodes",
    metadata,
    Column("engine", String(32), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("cpus", Float, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("gpu_type", String(64)),
    Column("seen_at", Seconds, nullable=False),
    # Lists as JSON in one order, so that the database can tell which are the same.
    Column("labels", Text, nullable=False, server_default="[]"),
    Column("topology", Text, nullable=False, server_default="[]"),
    Column("price_per_hour", Float, nullable=False, server_default="0"),
    Column("spot", Boolean, nullable=False, server_default=false()),
)


def commit_nodes(tx: Connection, engine: str, found: Sequence[Node], *, now: float) -> None:
    """Replace what is known of one engine's nodes."""
    tx.execute(delete(nodes).where(nodes.c.engine == engine))
    if found:
        rows = [
            {
                "engine": engine,
                "name": node.name,
                "cpus": node.cpus,
                "memory_bytes": node.memory_bytes,
                "gpus": node.gpus,
                "gpu_type": node.gpu_type,
                "seen_at": now,
                "labels": json.dumps(sorted(node.labels)),
                "topology": json.dumps(node.topology),
                "price_per_hour": node.price_per_hour,
                "spot": node.spot,
            }
            for node in found
        ]
        tx.execute(insert(nodes), rows)


def forget_others(tx: Connection, engines: Collection[str]) -> None:
    """The nodes of engines that are no longer configured: nobody could start anything there."""
    tx.execute(delete(nodes).where(nodes.c.engine.not_in(list(engines))))


def load_nodes(tx: Connection) -> tuple[Node, ...]:
    return _nodes(tx, select(nodes).order_by(nodes.c.engine, nodes.c.name))


def _nodes(tx: Connection, query: Select[Any]) -> tuple[Node, ...]:
    return tuple(
        Node(
            engine=row.engine,
            name=row.name,
            cpus=row.cpus,
            memory_bytes=row.memory_bytes,
            gpus=row.gpus,
            gpu_type=row.gpu_type,
            labels=_labels(row.labels),
            topology=_topology(row.topology),
            price_per_hour=row.price_per_hour,
            spot=row.spot,
        )
        for row in tx.execute(query)
    )


@lru_cache(maxsize=1 << 12)  # few differ, and all are read in every pass
def _labels(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))


@lru_cache(maxsize=1 << 12)
def _topology(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def load_kinds(tx: Connection) -> tuple[NodeKind, ...]:
    """What nodes there are, without naming each: enough to tell what could ever run."""
    same = ("engine", "cpus", "memory_bytes", "gpus", "gpu_type", "labels", "spot")
    alike = [nodes.c[name] for name in same]
    first = func.min(nodes.c.name).label("first")
    rows = tx.execute(
        select(*alike, first, func.count().label("size")).group_by(*alike).order_by(nodes.c.engine, first)
    )
    return tuple(
        NodeKind(
            node=Node(
                engine=row.engine,
                name=row.first,
                cpus=row.cpus,
                memory_bytes=row.memory_bytes,
                gpus=row.gpus,
                gpu_type=row.gpu_type,
                labels=_labels(row.labels),
                spot=row.spot,
            ),
            count=row.size,
        )
        for row in rows
    )


def load_named(tx: Connection, engine: str, names: Collection[str]) -> dict[str, Node]:
    """By name, those of an engine that there are."""
    wanted = sorted(set(names))
    found: list[Node] = []
    for start in range(0, len(wanted), _AT_ONCE):
        some = wanted[start : start + _AT_ONCE]
        found += _nodes(tx, select(nodes).where(nodes.c.engine == engine, nodes.c.name.in_(some)))
    return {node.name: node for node in found}


def load_seen_at(tx: Connection) -> dict[tuple[str, str], float]:
    return {(row.engine, row.name): row.seen_at for row in tx.execute(select(nodes))}
