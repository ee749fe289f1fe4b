"""The engines' side of nodes elsewhere: `NodeBook` over the database."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row

from windlass.core.clock import Clock
from windlass.db.database import Database
from windlass.engines.contract import NodeReport, Notice, StopKind
from windlass.nodes import store
from windlass.nodes.crowd import Crowd
from windlass.nodes.tokens import NodeTokens
from windlass.runs.sealing import Seal

_MOST_KNOWN = 50_000

Known = dict[store.NodeKey, tuple[int, NodeReport]]


class DatabaseNodeBook:
    def __init__(self, db: Database, seal: Seal, clock: Clock) -> None:
        self._db = db
        self._seal = seal
        self._clock = clock
        self._tokens = NodeTokens(seal)
        self._crowd = Crowd(time.monotonic)
        self._known: Known = {}  # spares reading; losing it costs time only

    def prepare(self, attempt_id: str, plans: Sequence[Mapping[str, Any]], secrets: Mapping[str, str]) -> None:
        sealed = self._seal.wrap(secrets)
        with self._db.write() as tx:
            store.insert_nodes(tx, attempt_id, plans, sealed)

    def token(self, attempt_id: str, node_rank: int) -> str:
        return self._tokens.token(attempt_id, node_rank)

    def load(self, attempt_ids: Sequence[str]) -> Mapping[str, Sequence[NodeReport]]:
        """Only what has changed since it was last asked for is read: a thousand nodes' reports are megabytes."""
        found: dict[str, list[NodeReport]] = {}
        if not attempt_ids:
            return found
        known = self._known  # threads that launch ask too, and one of them may begin another
        with self._db.read() as tx:
            versions = store.load_versions(tx, attempt_ids)
            stale = [key for key, version in versions.items() if key not in known or known[key][0] != version.number]
            # What a node ran with is most of its report, and stays as it was told.
            lacking = {key[0] for key in stale if _environment(known, key) is None}
            _learn(known, store.load_reports(tx, {key[0] for key in stale} - lacking, with_environment=False))
            _learn(known, store.load_reports(tx, lacking, with_environment=True))
            beat_s = self._crowd.pace(tx, watched=False).beat_s
        for key, version in versions.items():
            report = replace(known[key][1], reported_at=version.reported_at, beat_s=beat_s)
            found.setdefault(key[0], []).append(report)
        if len(known) > _MOST_KNOWN:
            self._known = {}
        return found

    def wish_to_stop(self, attempt_id: str, *, grace_s: float, kind: StopKind, reason: str) -> None:
        wish = {"kind": kind.value, "reason": reason, "grace_s": grace_s}
        with self._db.write() as tx:
            store.wish_to_stop(tx, attempt_id, wish, now=self._clock.now())

    def close(self, attempt_id: str) -> None:
        with self._db.write() as tx:
            store.close(tx, attempt_id, now=self._clock.now())
        rank = 0
        while self._known.pop((attempt_id, rank), None) is not None:
            rank += 1


def _learn(known: Known, rows: Sequence[Row[Any]]) -> None:
    for row in rows:
        key = (row.attempt_id, row.node_rank)
        environment = row._mapping.get("environment") or _environment(known, key)
        known[key] = (row.version, _report(row, environment))


def _environment(known: Known, key: store.NodeKey) -> Mapping[str, Any] | None:
    found = known.get(key)
    return found[1].environment if found is not None else None


def _report(row: Row[Any], environment: Mapping[str, Any] | None) -> NodeReport:
    return NodeReport(
        node_rank=row.node_rank,
        reported_at=row.reported_at,
        address=row.address,
        status=row.status,
        outcome=row.outcome,
        usage=row.usage,
        environment=environment,
        notice=_notice(row.notice),
    )


def _notice(told: Mapping[str, Any] | None) -> Notice | None:
    """What is only likely is no reason to stop: the next attempt might well be told the same."""
    if told is None or not told.get("certain", True):
        return None
    return Notice(message=told["message"], deadline=told["deadline"])
