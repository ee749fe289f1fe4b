"""Looking over many runs: searches, comparisons, figures for Prometheus. Those of MLflow's clients are among them."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.blobs.contract import Blobs
from windlass.core.clock import Clock
from windlass.core.errors import InvalidInput
from windlass.core.exposition import Family
from windlass.db.database import Database
from windlass.runs.comparison import compare
from windlass.runs.facts import code_diff, load_facts
from windlass.runs.gauges import load_gauges
from windlass.runs.references import resolve_id
from windlass.runs.savedviews import apply_view, find_view
from windlass.runs.search import find_one, search
from windlass.runs.service import RunService
from windlass.runs.views import metric_views
from windlass.tracking.store import load_summaries
from windlass.tracking.system import without_system
from windlass.wire.comparison import Comparison
from windlass.wire.runs import MetricSummaries
from windlass.wire.search import FoundPage, FoundRun


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

    def find(self, ref: str) -> FoundRun:
        """What a search says of one run. Raises NotFound or Ambiguous."""
        with self._db.read() as tx:
            return find_one(tx, resolve_id(tx, ref))

    def metrics(self, ref: str, *, system: bool) -> MetricSummaries:
        """What is known of each metric of any run; with `system` also of those of its machines."""
        with self._db.read() as tx:
            run_id = resolve_id(tx, ref)
            known = load_summaries(tx, [run_id]).get(run_id, {})
        shown = known if system else without_system(known)
        return MetricSummaries(run_id=run_id, metrics=metric_views(shown), left_out=len(known) - len(shown))

    def compare(self, refs: Sequence[str], *, everything: bool = False) -> Comparison:
        """What is named twice is one run. Raises InvalidInput if there are fewer than two."""
        with self._db.read() as tx:
            ids = list(dict.fromkeys(resolve_id(tx, ref) for ref in refs))
            if len(ids) < 2:
                raise InvalidInput(f"{' and '.join(refs)} are one run, {ids[0]}", hint="a comparison takes two")
            facts = [load_facts(tx, self._blobs, run_id) for run_id in ids]
        return compare(facts, everything=everything)

    def code_diff(self, first: str, second: str) -> str:
        with self._db.read() as tx:
            runs = (self._runs.resolve_in(tx, first), self._runs.resolve_in(tx, second))
        return code_diff(*runs, self._blobs)

    def gauges(self) -> list[Family]:
        """For Prometheus."""
        with self._db.read() as tx:
            return load_gauges(tx, now=self._clock.now())
