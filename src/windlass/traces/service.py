"""What can be done with traces; one transaction each."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, func, select

from windlass.core.clock import Clock
from windlass.core.errors import InvalidInput, NotFound
from windlass.core.paging import offset_of, page_token
from windlass.db.database import Database
from windlass.experiments.rules import check_name
from windlass.traces import assessments, store
from windlass.traces.arrivals import Batch, Known, decide_changes, first_columns, gather, needs_spans
from windlass.traces.conditions import read_conditions, read_orders
from windlass.traces.correlation import Correlation, Counts, correlate
from windlass.traces.metrics import Figure, Question, check_question, load_figures
from windlass.traces.search import search_traces, where
from windlass.traces.spans import Span
from windlass.traces.tables import notes, tags, traces
from windlass.traces.types import (
    FINALIZED,
    IN_DATABASE,
    LONGEST_NAME,
    SIZE_STATS,
    SPANS_LOCATION,
    Assessment,
    StoredSpan,
    Trace,
    check_time,
)

_MOST_LINKS = 100
_LARGEST_PAGE = 50_000
_LONGEST_VALUE = 8000
_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTrace:
    trace: Trace
    spans: Sequence[StoredSpan]

    @property
    def is_complete(self) -> bool:
        """Whether all spans are there that the client has spoken of."""
        try:
            wanted = json.loads(self.trace.metadata[SIZE_STATS])["num_spans"]
        except (KeyError, ValueError, TypeError):
            return True
        return not isinstance(wanted, int) or len(self.spans) >= wanted


class Unfinished(NotFound):
    """Spans of a trace are on their way: whoever asked may ask again for a while."""

    def __init__(self, message: str, *, hint: str | None = None, patience_s: float = 0) -> None:
        super().__init__(message, hint=hint)
        self.patience_s = patience_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """What changes of an assessment; None leaves it as it is."""

    name: str | None = None
    kind: str | None = None  # of the value that is given
    value: Any = None
    error: Mapping[str, str] | None = None
    rationale: str | None = None
    metadata: Mapping[str, str] | None = None


class TraceService:
    def __init__(self, *, db: Database, clock: Clock, patience_s: float = _PATIENCE_S) -> None:
        self._db = db
        self._clock = clock
        self._patience_s = patience_s

    def start(self, trace: Trace, *, experiment_id: str) -> Trace:
        """All about a trace; its spans may have come before, or come later."""
        store.check_sizes(trace)
        with self._db.write() as tx:
            location = store.load_location(tx, experiment_id, active=True)
            store.put_trace(
                tx,
                replace(
                    trace,
                    experiment_id=store.experiment_number(experiment_id),
                    tags={**trace.tags, **store.artifact_tag(location, trace.id)},
                    metadata={**trace.metadata, FINALIZED: "true"},
                ),
            )
            listed = [replace(one, trace_id=one.trace_id or trace.id) for one in trace.assessments]
            assessments.put_assessments(tx, listed)
            return store.load_trace(tx, trace.id)

    def begin(
        self, *, experiment_id: str, request_ms: int, metadata: Mapping[str, str], labels: Mapping[str, str]
    ) -> Trace:
        """As clients before MLflow 3 do: `finish` says the rest."""
        check_time("timestamp_ms", request_ms)
        with self._db.write() as tx:
            location = store.load_location(tx, experiment_id, active=True)
            trace_id = uuid.uuid4().hex
            trace = Trace(
                id=trace_id,
                experiment_id=store.experiment_number(experiment_id),
                request_ms=request_ms,
                duration_ms=None,
                state="IN_PROGRESS",
                metadata=metadata,
                tags={**labels, **store.artifact_tag(location, trace_id)},
            )
            store.insert_trace(tx, trace)
            return trace

    def finish(
        self, trace_id: str, *, end_ms: int, state: str, metadata: Mapping[str, str], labels: Mapping[str, str]
    ) -> Trace:
        check_time("timestamp_ms", end_ms)
        with self._db.write() as tx:
            row = store.load_row(tx, trace_id, locked=True)
            changes = {"duration_ms": end_ms - row.request_ms, "state": state, **store.token_columns(metadata)}
            store.change_trace(tx, trace_id, changes)
            store.put_pairs(tx, notes, {trace_id: metadata})
            store.put_pairs(tx, tags, {trace_id: labels})
            return store.load_trace(tx, trace_id)

    def log_spans(self, experiment_id: str, arrived: Sequence[Span], *, run_id: str | None = None) -> None:
        """Spans of any traces, which come to be where they are new. Those with a root among them belong to the run."""
        batches = gather(arrived)
        if not batches:
            return
        with self._db.write() as tx:
            if run_id and any(batch.root is not None for batch in batches):
                store.check_run(tx, run_id)
            ids = [batch.trace_id for batch in batches]
            known = store.lock_traces(tx, ids)
            if len(known) < len(batches):
                self._add_traces(tx, experiment_id, [batch for batch in batches if batch.trace_id not in known])
                known = store.lock_traces(tx, ids)
            _check_home(known.values(), experiment_id)
            written = store.load_spans(tx, [batch.trace_id for batch in batches if needs_spans(batch)])
            noted = store.load_pairs(tx, notes, ids)
            store.put_spans(tx, [row for batch in batches for row in batch.rows])
            changes = {
                batch.trace_id: decide_changes(
                    batch,
                    Known(
                        **{name: getattr(known[batch.trace_id], name) for name in _KNOWN},
                        metadata=noted.get(batch.trace_id, {}),
                        spans=written.get(batch.trace_id, ()),
                    ),
                )
                for batch in batches
            }
            for trace_id, change in changes.items():
                store.change_trace(tx, trace_id, {**change.columns, **store.token_columns(change.metadata)})
            store.put_pairs(tx, notes, {trace_id: change.metadata for trace_id, change in changes.items()})
            store.put_pairs(tx, tags, {trace_id: change.tags for trace_id, change in changes.items()})
            if run_id:
                store.put_links(tx, [(batch.trace_id, "run", run_id) for batch in batches if batch.root is not None])

    def _add_traces(self, tx: Connection, experiment_id: str, batches: Sequence[Batch]) -> None:
        location = store.load_location(tx, experiment_id)
        number = store.experiment_number(experiment_id)
        store.put_new_traces(tx, [first_columns(batch, number) for batch in batches])
        artifacts = {batch.trace_id: store.artifact_tag(location, batch.trace_id) for batch in batches}
        store.put_pairs(tx, tags, artifacts)

    def get(self, trace_id: str) -> Trace:
        with self._db.read() as tx:
            return store.load_trace(tx, trace_id)

    def whole(self, trace_id: str, *, partial: bool) -> WholeTrace:
        """With its spans. Raises Unfinished where some are on their way, unless a part will do."""
        with self._db.read() as tx:
            listed = self._whole(tx, [trace_id])
        if not listed:
            raise NotFound(f"Trace with ID {trace_id} is not found.")
        [found] = listed
        if SPANS_LOCATION not in found.trace.tags:
            raise InvalidInput("Trace data not stored in tracking store")
        if not partial and not (found.spans and found.is_complete):
            raise Unfinished(
                f"Trace with ID {trace_id} is not fully exported yet, please try again later.",
                patience_s=self._patience_s,
            )
        return found

    def whole_ones(self, trace_ids: Sequence[str]) -> list[WholeTrace]:
        """Those that are complete."""
        with self._db.read() as tx:
            found = self._whole(tx, trace_ids)
        if any(one.trace.tags.get(SPANS_LOCATION) != IN_DATABASE for one in found):
            raise InvalidInput("Trace data not stored in tracking store")
        return [one for one in found if one.spans and one.is_complete]

    def _whole(self, tx: Connection, trace_ids: Sequence[str]) -> list[WholeTrace]:
        listed = store.load_traces(tx, trace_ids)
        spans = store.load_spans(tx, [trace.id for trace in listed])
        return [WholeTrace(trace=trace, spans=spans.get(trace.id, ())) for trace in listed]

    def infos(self, trace_ids: Sequence[str]) -> list[Trace]:
        with self._db.read() as tx:
            return store.load_traces(tx, trace_ids)

    def search(
        self,
        experiment_ids: Sequence[str],
        *,
        filter: str | None = None,
        order_by: Sequence[str] = (),
        limit: int = 100,
        token: str | None = None,
    ) -> tuple[list[Trace], str | None]:
        if not 1 <= limit <= _LARGEST_PAGE:
            rule = "a positive integer" if limit < 1 else f"at most {_LARGEST_PAGE}"
            raise InvalidInput(f"Invalid value {limit} for parameter 'max_results' supplied. It must be {rule}")
        numbers = [store.experiment_number(id) for id in experiment_ids]
        conditions, orders, offset = read_conditions(filter), read_orders(order_by), offset_of(token)
        with self._db.read() as tx:
            found = search_traces(tx, numbers, conditions, orders, offset=offset, limit=limit)
        return found, page_token(offset + limit) if len(found) == limit else None

    def delete(self, experiment_id: str, *, until_ms: int | None, at_most: int | None, trace_ids: Sequence[str]) -> int:
        if until_ms is None and not trace_ids:
            raise InvalidInput("Either `max_timestamp_millis` or `trace_ids` must be specified.")
        if until_ms is not None and trace_ids:
            raise InvalidInput("Only one of `max_timestamp_millis` and `trace_ids` can be specified.")
        if trace_ids and at_most is not None:
            raise InvalidInput("`max_traces` can't be specified if `trace_ids` is specified.")
        if at_most is not None and at_most <= 0:
            raise InvalidInput(f"`max_traces` must be a positive integer, received {at_most}.")
        number = store.experiment_number(experiment_id)
        with self._db.write() as tx:
            return store.delete_traces(tx, number, until_ms=until_ms, at_most=at_most, ids=trace_ids)

    def set_tag(self, trace_id: str, key: str, value: str) -> None:
        if len(key) > LONGEST_NAME:
            raise InvalidInput(f"'key' exceeds the maximum length of {LONGEST_NAME} characters")
        check_name(key, "key")
        with self._db.write() as tx:
            store.load_row(tx, trace_id)
            store.put_pairs(tx, tags, {trace_id: {key: value[:_LONGEST_VALUE]}})

    def delete_tag(self, trace_id: str, key: str) -> None:
        with self._db.write() as tx:
            store.load_row(tx, trace_id)
            if not store.delete_pair(tx, tags, trace_id, key):
                raise NotFound(f"No trace tag with key '{key}' for trace with ID '{trace_id}'")

    def link_to_run(self, trace_ids: Sequence[str], run_id: str) -> None:
        if len(trace_ids) > _MOST_LINKS:
            raise InvalidInput(
                f"Cannot link more than {_MOST_LINKS} traces to a run in a single request. "
                f"Provided {len(trace_ids)} traces."
            )
        if trace_ids:
            with self._db.write() as tx:
                store.check_run(tx, run_id)
                store.put_links(tx, [(trace_id, "run", run_id) for trace_id in trace_ids])

    def link_prompts(self, trace_id: str, prompts: Sequence[tuple[str, str]]) -> None:
        """(name, version) of each."""
        if prompts:
            with self._db.write() as tx:
                store.load_row(tx, trace_id)
                store.put_links(tx, [(trace_id, "prompt", f"{name}/{version}") for name, version in prompts])

    def correlation(self, experiment_ids: Sequence[str], first: str, second: str, base: str | None) -> Correlation:
        numbers = [store.experiment_number(id) for id in experiment_ids]
        within, one, other = (read_conditions(text) for text in (base, first, second))
        with self._db.read() as tx:

            def count(*conditions: Any) -> int:
                query = select(func.count()).select_from(traces).where(traces.c.experiment_id.in_(numbers))
                query = query.where(*(part for found in (within, *conditions) for part in where(tx, found)))
                return int(tx.execute(query).scalar_one())

            return correlate(Counts(total=count(), first=count(one), second=count(other), both=count(one, other)))

    def figures(self, asked: Question) -> list[Figure]:
        check_question(asked)
        with self._db.read() as tx:
            return load_figures(tx, asked)

    def create_assessment(self, assessment: Assessment) -> Assessment:
        """With an id and times of its own where it has none."""
        if len(assessment.name) > LONGEST_NAME:
            raise InvalidInput(f"'assessment_name' exceeds the maximum length of {LONGEST_NAME} characters")
        now = int(self._clock.now() * 1000)
        complete = replace(
            assessment,
            id=assessment.id or f"a-{uuid.uuid4().hex}",
            created_ms=assessment.created_ms or now,
            updated_ms=assessment.updated_ms or now,
            valid=True,
        )
        with self._db.write() as tx:
            store.load_row(tx, complete.trace_id, locked=True)
            assessments.add_assessment(tx, complete)
        return complete

    def get_assessment(self, trace_id: str, assessment_id: str) -> Assessment:
        with self._db.read() as tx:
            return assessments.load_assessment(tx, trace_id, assessment_id)

    def update_assessment(self, trace_id: str, assessment_id: str, revision: Revision) -> Assessment:
        with self._db.write() as tx:
            found = assessments.load_assessment(tx, trace_id, assessment_id)
            _check_kind(found, revision)
            valued = {} if revision.kind is None else {"value": revision.value, "error": revision.error}
            given = {name: getattr(revision, name) for name in ("name", "rationale")}
            changed = replace(
                found,
                **{name: value for name, value in given.items() if value is not None},
                **valued,
                metadata={**(found.metadata or {}), **(revision.metadata or {})} or None,
                updated_ms=int(self._clock.now() * 1000),
            )
            assessments.change_assessment(tx, changed)
            return changed

    def delete_assessment(self, trace_id: str, assessment_id: str) -> None:
        with self._db.write() as tx:
            store.load_row(tx, trace_id)
            assessments.remove_assessment(tx, trace_id, assessment_id)


_KNOWN = ("request_ms", "duration_ms", "state", "request_preview", "response_preview")


def _check_home(rows: Iterable[Row[Any]], experiment_id: str) -> None:
    """Nobody adds to a trace of another experiment than the one that was named."""
    number = store.experiment_number(experiment_id)
    for row in rows:
        if row.experiment_id != number:
            raise InvalidInput(f"Trace with ID '{row.id}' already exists in another experiment.")


def _check_kind(found: Assessment, revision: Revision) -> None:
    if revision.kind is None or revision.kind == found.kind:
        return
    if revision.kind == "expectation":
        raise InvalidInput("Cannot update expectation value on a Feedback assessment.")
    raise InvalidInput("Cannot update feedback value on an Expectation assessment.")
