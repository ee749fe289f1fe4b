"""The table of nodes of attempts: what each is to do, what it has told, and what it is to be told."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, LargeBinary, String, Table

from windlass.db.metadata import Json, Seconds, metadata

attempt_nodes = Table(
    "attempt_nodes",
    metadata,
    Column("attempt_id", String(48), primary_key=True),
    Column("node_rank", Integer, primary_key=True, autoincrement=False),
    Column("plan", Json, nullable=False),  # empty once the attempt is closed
    Column("secrets", LargeBinary),  # sealed; gone once the attempt is closed
    # The one process that may be this node: whoever says hello first.
    Column("incarnation", String(64)),
    Column("host", String(200)),
    Column("address", String(200)),
    Column("port", Integer),  # free on that node: where ranks meet, if it is node 0
    Column("fetched_at", Seconds),  # the plan was handed out: ranks may run from here on
    Column("reported_at", Seconds),
    Column("version", Integer, nullable=False, server_default="0"),  # counts changes of what follows
    # The node folder's files of these names.
    Column("status", Json),
    Column("outcome", Json),
    Column("usage", Json),
    Column("environment", Json),
    Column("notice", Json),
    Column("stop", Json),  # the wish to stop: kind, reason, grace_s
    Column("closed_at", Seconds),
    Index("ix_attempt_nodes_closed", "closed_at"),
)
