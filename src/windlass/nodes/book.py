"""The engines' side of nodes elsewhere: `NodeBook` over the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.core.clock import Clock
from windlass.db.database import Database
from windlass.engines.contract import NodeReport, Notice, StopKind
from windlass.nodes import store
from windlass.nodes.tokens import NodeTokens
from windlass.runs.sealing import Seal


class DatabaseNodeBook:
    def __init__(self, db: Database, seal: Seal, clock: Clock) -> None:
        self._db = db
        self._seal = seal
        self._clock = clock
        self._tokens = NodeTokens(seal)

    def prepare(self, attempt_id: str, plans: Sequence[Mapping[str, Any]], secrets: Mapping[str, str]) -> None:
        sealed = self._seal.wrap(secrets)
        with self._db.write() as tx:
            store.insert_nodes(tx, attempt_id, plans, sealed)

    def token(self, attempt_id: str, node_rank: int) -> str:
        return self._tokens.token(attempt_id, node_rank)

    def load(self, attempt_ids: Sequence[str]) -> Mapping[str, Sequence[NodeReport]]:
        if not attempt_ids:
            return {}
        found: dict[str, list[NodeReport]] = {}
        with self._db.read() as tx:
            rows = store.load_reports(tx, attempt_ids)
        for row in rows:
            report = NodeReport(
                node_rank=row.node_rank,
                reported_at=row.reported_at,
                address=row.address,
                status=row.status,
                outcome=row.outcome,
                usage=row.usage,
                environment=row.environment,
                notice=Notice(**row.notice) if row.notice else None,
            )
            found.setdefault(row.attempt_id, []).append(report)
        return found

    def wish_to_stop(self, attempt_id: str, *, grace_s: float, kind: StopKind, reason: str) -> None:
        wish = {"kind": kind.value, "reason": reason, "grace_s": grace_s}
        with self._db.write() as tx:
            store.wish_to_stop(tx, attempt_id, wish, now=self._clock.now())

    def close(self, attempt_id: str) -> None:
        with self._db.write() as tx:
            store.close(tx, attempt_id, now=self._clock.now())
