"""The API's side of nodes elsewhere: hello, code, reports. Everything is safe to repeat, from any API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection

from windlass.agent import layout
from windlass.agent.environ import ranks_per_node
from windlass.blobs.contract import Blobs
from windlass.checkpoints.store import record_notes
from windlass.core.clock import Clock
from windlass.core.errors import Conflict, Gone, NotFound, Unauthorized
from windlass.core.storable import storable
from windlass.db.database import Database
from windlass.nodes import store
from windlass.nodes.archive import stream_code
from windlass.nodes.crowd import Crowd
from windlass.nodes.store import NodeRecord
from windlass.nodes.tokens import NodeTokens
from windlass.runs.alerts import record_alerts
from windlass.runs.rulebook import heed_points
from windlass.runs.sealing import Seal
from windlass.runs.tracked import record_plan
from windlass.tracking import storedlogs
from windlass.tracking.points import SpoolChunk, parse_spool
from windlass.tracking.store import ingest, load_position, lock
from windlass.wire import nodes as wire

# A line of a spool this long is no point; waiting for its end would keep all that follow it waiting too.
_LONGEST_POINT_BYTES = 1 << 20
_HEARD_S = 2.0  # how exactly it is kept when a node was last heard of
Sent = Sequence[tuple[wire.SentBytes, bytes]]


class NodeService:
    def __init__(self, db: Database, blobs: Blobs, seal: Seal, clock: Clock, *, nudge: Callable[[], None]) -> None:
        self._db = db
        self._blobs = blobs
        self._seal = seal
        self._clock = clock
        self._nudge = nudge
        self._tokens = NodeTokens(seal)
        self._crowd = Crowd(time.monotonic)

    def check_token(self, token: str, attempt_id: str, node_rank: int) -> None:
        if not self._tokens.is_valid(token, attempt_id, node_rank):
            raise Unauthorized(f"the token is not that of node {node_rank} of attempt {attempt_id}")

    # ---- beginning ---------------------------------------------------------------------------------------------

    def introduce(self, attempt_id: str, node_rank: int, hello: wire.Hello) -> None:
        """Make the caller this node, unless another process is. Raises Conflict then, Gone if it is over."""
        with self._db.write() as tx:
            node = _living(store.load_node(tx, attempt_id, node_rank, lock=True), attempt_id, node_rank)
            if node.incarnation is None:
                values = hello.model_dump(include={"incarnation", "address", "port", "host"})
                store.update_node(tx, attempt_id, node_rank, {**values, "reported_at": self._clock.now()})
            else:
                _check_incarnation(node, hello.incarnation)

    def welcome(self, attempt_id: str, node_rank: int, incarnation: str) -> wire.Welcome | list[int]:
        """The node's plan once all nodes have said hello; the ranks of those that have not, before."""
        with self._db.read() as tx:
            addresses = store.load_addresses(tx, attempt_id)
        missing = [rank for rank, (address, _) in enumerate(addresses) if address is None]
        if missing and not self._is_over(attempt_id, node_rank):
            return missing
        with self._db.write() as tx:
            node = _living(store.load_node(tx, attempt_id, node_rank, lock=True), attempt_id, node_rank)
            _check_incarnation(node, incarnation)
            if node.fetched_at is None:
                store.update_node(tx, attempt_id, node_rank, {"fetched_at": self._clock.now()})
        master_addr, master_port = addresses[0]
        assert master_addr is not None
        assert master_port is not None
        return wire.Welcome(
            plan=dict(node.plan),
            secrets=self._seal.unwrap(node.secrets),
            master_addr=master_addr,
            master_port=master_port,
            node_addrs=[address for address, _ in addresses if address is not None],
            stop=wire.StopWish(**node.stop) if node.stop else None,
        )

    def _is_over(self, attempt_id: str, node_rank: int) -> bool:
        with self._db.read() as tx:
            node = store.load_node(tx, attempt_id, node_rank)
        return node is None or node.closed_at is not None or node.outcome is not None

    def code(self, attempt_id: str, node_rank: int) -> Iterator[bytes]:
        """The code snapshot of the node's run as a tar of blobs, each named by its sha256; the manifest is first."""
        with self._db.read() as tx:
            node = _living(store.load_node(tx, attempt_id, node_rank), attempt_id, node_rank)
        digest = node.plan.get("code_digest")
        if not digest:
            raise NotFound(f"attempt {attempt_id} has no code snapshot")
        return stream_code(self._blobs, str(digest))

    # ---- reporting ---------------------------------------------------------------------------------------------

    def report(self, attempt_id: str, node_rank: int, head: wire.ReportHead, sent: Sent) -> wire.ReportReceipt:
        """Take what is new. An outcome counts only with the last bytes: whoever sees the end sees all of the logs."""
        now = self._clock.now()
        with self._db.write() as tx:
            node = store.load_node(tx, attempt_id, node_rank, lock=True)
            if node is None or node.closed_at is not None:
                raise _gone(attempt_id, node_rank)
            _check_incarnation(node, head.incarnation)
            positions = self._take(tx, node, sent, now=now)
            complete = all(positions[part.name] >= part.position + part.size for part, _ in sent)
            changes = _changes(node, head, complete=complete)
            if changes or node.reported_at is None or now - node.reported_at > _HEARD_S:
                store.update_node(tx, attempt_id, node_rank, {**changes, "reported_at": now})
            watched = storedlogs.is_watched(tx, attempt_id, now=now)
            pace = self._crowd.pace(tx, watched=watched)
        if changes.keys() & {"status", "outcome", "notice"}:
            self._nudge()
        return wire.ReportReceipt(
            positions=positions,
            stop=wire.StopWish(**node.stop) if node.stop else None,
            ended=node.outcome is not None or "outcome" in changes,
            pause_s=pace.pause_s,
            beat_s=pace.beat_s,
        )

    def _take(self, tx: Connection, node: NodeRecord, sent: Sent, *, now: float) -> dict[str, int]:
        positions = {}
        place = storedlogs.LogPlace(node.attempt_id, node.node_rank)
        for part, data in sent:
            spool = layout.rank_of_spool(part.name)
            if not _is_own(node, part.name):
                # Not refused: a process with a made-up rank must not keep the rest of the report out.
                positions[part.name] = part.position + part.size
            elif spool is None:
                positions[part.name] = storedlogs.append(tx, place, part.name, part.position, data)
            else:
                positions[part.name] = _take_points(tx, node, spool, part.position, data, now=now)
        return positions


def _take_points(tx: Connection, node: NodeRecord, rank: int, position: int, data: bytes, *, now: float) -> int:
    run_id, source = str(node.plan["run_id"]), f"spool:{node.attempt_id}:{rank}"
    lock(tx, run_id)
    known = load_position(tx, run_id, source)
    fresh = data[known - position :] if position <= known else b""
    if not fresh:
        return known
    chunk = parse_spool(fresh, known)
    if chunk.next_position == known and len(fresh) >= _LONGEST_POINT_BYTES:
        chunk = SpoolChunk(next_position=known + len(fresh), bad_lines=1)
    if chunk.next_position > known:
        ingest(tx, run_id, source, chunk.points, position=known, next_position=chunk.next_position)
        heed_points(tx, run_id, chunk.points, now=now)
        record_alerts(tx, run_id, source, chunk.alerts)
        record_notes(tx, run_id, source, chunk.saves)
        record_plan(tx, run_id, chunk.plan)
    return chunk.next_position


def _changes(node: NodeRecord, head: wire.ReportHead, *, complete: bool) -> dict[str, Any]:
    """The files that differ from what is known. An end is not taken back."""
    told: dict[str, Any] = {
        name: value.model_dump(mode="json") if not isinstance(value, dict) else value
        for name in ("status", "usage", "environment", "notice")
        if (value := getattr(head, name)) is not None
    }
    if head.outcome is not None and complete and node.outcome is None:
        told["outcome"] = head.outcome.model_dump(mode="json")
    told = {name: storable(value) for name, value in told.items()}
    return {name: value for name, value in told.items() if value != getattr(node, name)}


def _living(node: NodeRecord | None, attempt_id: str, node_rank: int) -> NodeRecord:
    if node is None or node.closed_at is not None or node.outcome is not None:
        raise _gone(attempt_id, node_rank)
    return node


def _gone(attempt_id: str, node_rank: int) -> Gone:
    return Gone(f"node {node_rank} of attempt {attempt_id} is over")


def _check_incarnation(node: NodeRecord, incarnation: str) -> None:
    if node.incarnation != incarnation:
        raise Conflict(
            f"node {node.node_rank} of attempt {node.attempt_id} is another process, on {node.host or 'no host yet'}",
            hint="an attempt's node runs once; the next attempt gets new ones",
        )


def _is_own(node: NodeRecord, name: str) -> bool:
    """Whether it is a log or spool that this node can have: its positions are its own, and nobody else moves them."""
    if name in layout.NODE_LOGS:
        return True
    rank, spool_rank = layout.rank_of_log(name), layout.rank_of_spool(name)
    if spool_rank is not None and node.plan["self_launching"]:
        # Whoever starts the workers numbers them.
        return spool_rank < int(node.plan["nnodes"]) * int(node.plan["workers_per_node"])
    if rank is None:
        rank = spool_rank
    if rank is None or name not in (layout.rank_log(rank), layout.metrics_spool(rank)):
        return False
    return rank // ranks_per_node(node.plan) == node.node_rank
