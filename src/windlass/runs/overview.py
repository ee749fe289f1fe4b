"""Looking over many runs: searches, comparisons, figures for Prometheus. Those of MLflow's clients are among them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from windlass.blobs.contract import Blobs
from windlass.core.clock import Clock
from windlass.core.errors import NotFound
from windlass.core.exposition import Family
from windlass.db.database import Database
from windlass.runs.comparison import compare
from windlass.runs.facts import code_diff, is_tracked, load_facts
from windlass.runs.gauges import load_gauges
from windlass.runs.savedviews import apply_view, find_view
from windlass.runs.search import search
from windlass.runs.service import RunService
from windlass.wire.comparison import Comparison
from windlass.wire.search import FoundPage


class Overview:
    def __init__(self, *, db: Database, blobs: Blobs, clock: Clock, runs: RunService) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._runs = runs

    def search(
        self,
        *,
        where: str | None,
        order: Sequence[str],
        cursor: str | None,
        limit: int,
        view: str | None = None,
        project: str | None = None,
    ) -> FoundPage:
        """`view`: one that was saved, of `project` or of all; what else is given is looked for besides. With `project`
        only runs of it."""
        with self._db.read() as tx:
            if view is not None:
                where, order = apply_view(find_view(tx, view, project), where, order)
            return search(
                tx, where=where, project=project, order=order, cursor=cursor, limit=limit, now=self._clock.now()
            )

    def compare(self, refs: Sequence[str], *, everything: bool = False) -> Comparison:
        with self._db.read() as tx:
            facts = [load_facts(tx, self._blobs, self.known_id(tx, ref)) for ref in refs]
        return compare(facts, everything=everything)

    def code_diff(self, first: str, second: str) -> str:
        with self._db.read() as tx:
            runs = (self._runs.resolve_in(tx, first), self._runs.resolve_in(tx, second))
        return code_diff(*runs, self._blobs)

    def gauges(self) -> list[Family]:
        """For Prometheus."""
        with self._db.read() as tx:
            return load_gauges(tx, now=self._clock.now())

    def known_id(self, tx: Connection, ref: str) -> str:
        """Of a run of ours, or of one that only an MLflow client knows: that one by its whole id."""
        try:
            return self._runs.resolve_in(tx, ref).id
        except NotFound:
            if not is_tracked(tx, ref):
                raise
            return ref
