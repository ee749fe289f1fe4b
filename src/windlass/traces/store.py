"""Queries of traces, their tags, metadata, spans and links; each over an open transaction."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, insert, select, update

from windlass.core.errors import InvalidInput, NotFound
from windlass.db.insertion import insert_missing, insert_or_replace_all
from windlass.experiments.tables import experiments, tracked_runs
from windlass.traces.assessments import load_assessments
from windlass.traces.tables import links, notes, spans, tags, traces
from windlass.traces.totals import CACHE_TOKENS, TOKENS
from windlass.traces.types import ARTIFACT_LOCATION, LONGEST_NAME, TOKEN_USAGE, StoredSpan, Trace, storable

# SQLite takes some thousand parameters in one statement.
_AT_ONCE = 500
TOKEN_COLUMNS = (*TOKENS, *CACHE_TOKENS[:2])


def chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    unique = list(dict.fromkeys(ids))
    for start in range(0, len(unique), _AT_ONCE):
        yield unique[start : start + _AT_ONCE]


def experiment_number(experiment_id: str | int) -> int:
    try:
        number = int(experiment_id)
    except ValueError:
        number = None
    if number is None or abs(number) >= 2**63:
        raise InvalidInput(f"Invalid experiment ID '{experiment_id}'. Experiment ID must be a valid integer.")
    return number


def load_location(tx: Connection, experiment_id: str | int, *, active: bool = False) -> str:
    """Where the experiment keeps its artifacts. Raises NotFound, and InvalidInput for one that has been deleted."""
    number = experiment_number(experiment_id)
    query = select(experiments.c.artifact_location, experiments.c.stage).where(experiments.c.id == number)
    row = tx.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"No Experiment with id={experiment_id} exists")
    if active and row.stage != "active":
        raise InvalidInput(
            f"The experiment {experiment_id} must be in the 'active' state. Current state is {row.stage}."
        )
    location: str = row.artifact_location
    return location


def artifact_tag(location: str, trace_id: str) -> dict[str, str]:
    return {ARTIFACT_LOCATION: f"{location.rstrip('/')}/traces/{trace_id}/artifacts"}


def check_run(tx: Connection, run_id: str) -> None:
    if tx.execute(select(tracked_runs.c.id).where(tracked_runs.c.id == run_id)).scalar() is None:
        raise NotFound(f"Run with id={run_id} not found")


def load_trace(tx: Connection, trace_id: str) -> Trace:
    """Raises NotFound."""
    row = load_row(tx, trace_id)
    [trace] = assemble(tx, [row])
    return trace


def load_row(tx: Connection, trace_id: str, *, locked: bool = False) -> Row[Any]:
    query = select(traces).where(traces.c.id == trace_id)
    row = tx.execute(query.with_for_update() if locked else query).one_or_none()
    if row is None:
        raise NotFound(f"Trace with ID '{trace_id}' not found.")
    return row


def load_traces(tx: Connection, trace_ids: Sequence[str]) -> list[Trace]:
    """Those that there are, in the order of the ids."""
    found = {row.id: row for ids in chunks(trace_ids) for row in tx.execute(select(traces).where(traces.c.id.in_(ids)))}
    return assemble(tx, [found[id] for id in dict.fromkeys(trace_ids) if id in found])


def assemble(tx: Connection, rows: Sequence[Row[Any]]) -> list[Trace]:
    """Rows with what belongs to them."""
    ids = [row.id for row in rows]
    tagged, noted, assessed = load_pairs(tx, tags, ids), load_pairs(tx, notes, ids), load_assessments(tx, ids)
    return [
        Trace(
            id=row.id,
            experiment_id=row.experiment_id,
            request_ms=row.request_ms,
            duration_ms=row.duration_ms,
            state=row.state,
            client_request_id=row.client_request_id,
            request_preview=row.request_preview,
            response_preview=row.response_preview,
            metadata=noted.get(row.id, {}),
            tags=tagged.get(row.id, {}),
            assessments=tuple(assessed.get(row.id, ())),
        )
        for row in rows
    ]


def load_pairs(tx: Connection, table: Table, trace_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for ids in chunks(trace_ids):
        for trace_id, key, value in tx.execute(select(table).where(table.c.trace_id.in_(ids))):
            found[trace_id][key] = value
    return found


def lock_traces(tx: Connection, trace_ids: Sequence[str]) -> dict[str, Row[Any]]:
    """In one order for all writers: they would wait for each other for ever."""
    found = {}
    for ids in chunks(sorted(set(trace_ids))):
        query = select(traces).where(traces.c.id.in_(ids)).order_by(traces.c.id).with_for_update()
        found.update({row.id: row for row in tx.execute(query)})
    return found


def put_trace(tx: Connection, trace: Trace) -> None:
    """A trace that is there already keeps its previews where this one has none, and what else belongs to it."""
    values = _values(trace)
    insert_missing(tx, traces, [values])
    row = load_row(tx, trace.id, locked=True)
    kept = {name: getattr(row, name) for name in ("request_preview", "response_preview") if values[name] is None}
    changes = {name: value for name, value in (values | kept).items() if getattr(row, name) != value}
    tokens = token_columns(trace.metadata)
    changes |= {name: value for name, value in tokens.items() if value is not None}
    if changes:
        tx.execute(update(traces).where(traces.c.id == trace.id).values(**changes))
    put_pairs(tx, tags, {trace.id: trace.tags})
    put_pairs(tx, notes, {trace.id: trace.metadata})


def _values(trace: Trace) -> dict[str, Any]:
    return {
        "id": trace.id,
        "experiment_id": trace.experiment_id,
        "request_ms": trace.request_ms,
        "duration_ms": trace.duration_ms,
        "state": trace.state,
        "client_request_id": trace.client_request_id,
        "request_preview": storable(trace.request_preview),
        "response_preview": storable(trace.response_preview),
    }


def check_sizes(trace: Trace) -> None:
    """What has no room, or no name, is refused in words."""
    if not 0 < len(trace.id) <= LONGEST_NAME:
        raise InvalidInput(f"the id of a trace has 1 to {LONGEST_NAME} characters, not {len(trace.id)}")
    for key in (*trace.tags, *trace.metadata):
        if len(key) > LONGEST_NAME:
            raise InvalidInput(f"'key' exceeds the maximum length of {LONGEST_NAME} characters")


def token_columns(metadata: Mapping[str, str]) -> dict[str, int | None]:
    """What the metadata says of tokens; nothing for what it does not speak of."""
    try:
        said = json.loads(metadata[TOKEN_USAGE])
    except (KeyError, ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    return {name: _count(said[name]) for name in TOKEN_COLUMNS if name in said}


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return int(value) if abs(value) < 2**63 else None


def put_pairs(tx: Connection, table: Table, pairs: Mapping[str, Mapping[str, str]]) -> None:
    rows = [
        {"trace_id": trace_id, "key": key, "value": storable(value)}
        for trace_id, found in sorted(pairs.items())
        for key, value in sorted(found.items())
    ]
    insert_or_replace_all(tx, table, rows)


def delete_pair(tx: Connection, table: Table, trace_id: str, key: str) -> bool:
    return tx.execute(delete(table).where(table.c.trace_id == trace_id, table.c.key == key)).rowcount > 0


def delete_traces(
    tx: Connection, experiment_id: int, *, until_ms: int | None, at_most: int | None, ids: Sequence[str]
) -> int:
    """The oldest first, where not all of them go."""
    chosen = [traces.c.experiment_id == experiment_id]
    if until_ms is not None:
        chosen.append(traces.c.request_ms <= until_ms)
    if ids:
        return sum(_delete(tx, chunk, chosen) for chunk in chunks(ids))
    query = select(traces.c.id).where(*chosen).order_by(traces.c.request_ms, traces.c.id)
    doomed = list(tx.execute(query.limit(at_most) if at_most is not None else query).scalars())
    return sum(_delete(tx, chunk, chosen) for chunk in chunks(doomed))


def _delete(tx: Connection, ids: list[str], chosen: list[Any]) -> int:
    doomed = select(traces.c.id).where(traces.c.id.in_(ids), *chosen)
    tx.execute(delete(links).where(links.c.trace_id.in_(doomed)))
    return tx.execute(delete(traces).where(traces.c.id.in_(ids), *chosen)).rowcount


def put_links(tx: Connection, rows: Sequence[tuple[str, str, str]]) -> None:
    """(trace, kind, target). Traces arrive by other ways than their links: they need not be there yet."""
    listed = [{"trace_id": trace_id, "kind": kind, "target": target} for trace_id, kind, target in sorted(set(rows))]
    insert_missing(tx, links, listed)


def load_spans(tx: Connection, trace_ids: Sequence[str]) -> dict[str, list[StoredSpan]]:
    """Roots first, then by their start."""
    found: defaultdict[str, list[StoredSpan]] = defaultdict(list)
    columns = (spans.c.trace_id, spans.c.id, spans.c.parent_id, spans.c.start_ns, spans.c.content)
    for ids in chunks(trace_ids):
        for trace_id, id, parent_id, start_ns, content in tx.execute(select(*columns).where(spans.c.trace_id.in_(ids))):
            found[trace_id].append(StoredSpan(id=id, parent_id=parent_id, start_ns=start_ns, content=content))
    for listed in found.values():
        listed.sort(key=lambda span: (span.parent_id is not None, span.start_ns))
    return found


def put_spans(tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    insert_or_replace_all(tx, spans, sorted(rows, key=lambda row: (row["trace_id"], row["id"])))


def put_new_traces(tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    insert_missing(tx, traces, sorted(rows, key=lambda row: str(row["id"])))


def change_trace(tx: Connection, trace_id: str, changes: Mapping[str, Any]) -> None:
    if changes:
        tx.execute(update(traces).where(traces.c.id == trace_id).values(**changes))


def insert_trace(tx: Connection, trace: Trace) -> None:
    tx.execute(insert(traces).values(**_values(trace), **token_columns(trace.metadata)))
    put_pairs(tx, tags, {trace.id: trace.tags})
    put_pairs(tx, notes, {trace.id: trace.metadata})
