"""Figures over many traces, spans or assessments: counts, sums, averages and percentiles, by time and by dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, distinct, exists, func, or_, select, true

from windlass.core.errors import InvalidInput
from windlass.experiments.language import Name, parse_filter
from windlass.traces.conditions import unquoted
from windlass.traces.search import linked
from windlass.traces.store import TOKEN_COLUMNS
from windlass.traces.tables import assessments, notes, spans, tags, traces
from windlass.traces.totals import COSTS
from windlass.traces.types import SOURCE_RUN, TRACE_NAME, TRACE_SESSION

_AMOUNTS = ("AVG", "MAX", "MIN", "PERCENTILE", "SUM")
_SPREADS = ("AVG", "MAX", "MIN", "PERCENTILE")
_BUCKET = "time_bucket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    aggregations: tuple[str, ...]
    dimensions: tuple[str, ...] = ()


_BY_MODEL = ("span_model_name", "span_model_provider")
VIEWS: Mapping[str, Mapping[str, Rules]] = {
    "TRACES": {
        "trace_count": Rules(aggregations=("COUNT",), dimensions=("trace_name", "trace_status")),
        "session_count": Rules(aggregations=("COUNT",)),
        "latency": Rules(aggregations=_SPREADS, dimensions=("trace_name",)),
        **{name: Rules(aggregations=_AMOUNTS, dimensions=("trace_name",)) for name in TOKEN_COLUMNS},
    },
    "SPANS": {
        "span_count": Rules(aggregations=("COUNT",), dimensions=("span_name", "span_status", "span_type", *_BY_MODEL)),
        "latency": Rules(aggregations=_SPREADS, dimensions=("span_name", "span_status")),
        **{name: Rules(aggregations=_AMOUNTS, dimensions=_BY_MODEL) for name in COSTS},
    },
    "ASSESSMENTS": {
        "assessment_count": Rules(aggregations=("COUNT",), dimensions=("assessment_name", "assessment_value")),
        "assessment_value": Rules(aggregations=_SPREADS, dimensions=("assessment_name",)),
    },
}
# What filters may name, and whether it takes a key.
_NAMES = {
    "trace": {"status": False, "tag": True, "metadata": True},
    "span": {"name": False, "status": False, "type": False},
    "assessment": {"name": False, "type": False},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    kind: str  # COUNT, SUM, AVG, MIN, MAX or PERCENTILE
    percentile: float | None = None

    @property
    def label(self) -> str:
        return f"P{self.percentile}" if self.kind == "PERCENTILE" else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    experiment_ids: Sequence[int]
    view: str
    metric: str
    aggregations: Sequence[Aggregation]
    dimensions: Sequence[str] = ()
    filters: Sequence[str] = ()
    interval_s: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    most: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    dimensions: Mapping[str, str]
    values: Mapping[str, float]


def check_question(asked: Question) -> None:
    """Raises InvalidInput."""
    if asked.view not in VIEWS:
        raise InvalidInput(f"view_type must be one of {list(VIEWS)}, got '{asked.view}'")
    metrics = VIEWS[asked.view]
    if asked.metric not in metrics:
        raise InvalidInput(f"metric_name must be one of {list(metrics)}, got '{asked.metric}'")
    rules = metrics[asked.metric]
    if wrong := {one.kind for one in asked.aggregations} - set(rules.aggregations):
        raise InvalidInput(
            f"Found invalid aggregation_type(s): {sorted(wrong)}. "
            f"Supported aggregation types: {sorted(rules.aggregations)}"
        )
    if wrong := set(asked.dimensions) - set(rules.dimensions):
        raise InvalidInput(
            f"Found invalid dimension(s): {sorted(wrong)}. Supported dimensions: {sorted(rules.dimensions)}"
        )
    for one in asked.aggregations:
        if (one.kind == "PERCENTILE") != (one.percentile is not None) or not 0 <= (one.percentile or 0) <= 100:
            raise InvalidInput(f"a percentile between 0 and 100 goes with PERCENTILE alone, got {one.label}")
    if asked.interval_s and (asked.from_ms is None or asked.until_ms is None):
        raise InvalidInput("start_time_ms and end_time_ms are required if time_interval_seconds is set")


def load_figures(tx: Connection, asked: Question) -> list[Figure]:
    check_question(asked)
    _prepare_percentiles(tx)
    groups: dict[str, ColumnElement[Any]] = {}
    if asked.interval_s:
        groups[_BUCKET] = _bucket(asked.view, asked.interval_s * 1000)
    groups |= {name: _dimension(name) for name in asked.dimensions}
    column = _column(asked.view, asked.metric)
    values = {one.label: _aggregate(tx, one, column) for one in asked.aggregations}
    query = select(
        *(group.label(name) for name, group in groups.items()),
        *(value.label(f"value_{index}") for index, value in enumerate(values.values())),
    )
    query = _from(asked.view, query).where(*_within(asked), *(_filter(asked.view, text) for text in asked.filters))
    if asked.metric == "session_count":
        query = query.where(_noted(TRACE_SESSION).is_not(None))
    if groups:  # by name: PostgreSQL takes an expression with other parameters for another one
        query = query.group_by(*groups).order_by(*groups)
    rows = tx.execute(query.limit(asked.most)).all()
    return [figure for row in rows if (figure := _figure(row, list(groups), list(values)))]


def _figure(row: Sequence[Any], groups: Sequence[str], labels: Sequence[str]) -> Figure | None:
    """None for what has no dimension, or no value."""
    dimensions = dict(zip(groups, row[: len(groups)], strict=True))
    values = {label: float(value) for label, value in zip(labels, row[len(groups) :], strict=True) if value is not None}
    if not values or None in dimensions.values():
        return None
    if _BUCKET in dimensions:
        at = datetime.fromtimestamp(float(dimensions[_BUCKET]) / 1000, tz=UTC)
        dimensions[_BUCKET] = at.isoformat()
    return Figure(dimensions={name: str(value) for name, value in dimensions.items()}, values=values)


def _from(view: str, query: Select[Any]) -> Select[Any]:
    if view == "SPANS":
        return query.select_from(traces.join(spans, spans.c.trace_id == traces.c.id))
    if view == "ASSESSMENTS":
        joined = traces.join(assessments, assessments.c.trace_id == traces.c.id)
        return query.select_from(joined).where(assessments.c.valid == true())
    return query.select_from(traces)


def _within(asked: Question) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [traces.c.experiment_id.in_(asked.experiment_ids)]
    if asked.from_ms is not None:
        found.append(traces.c.request_ms >= asked.from_ms)
    if asked.until_ms is not None:
        found.append(traces.c.request_ms <= asked.until_ms)
    return found


def _column(view: str, metric: str) -> ColumnElement[Any]:
    match view, metric:
        case "TRACES", "trace_count":
            return traces.c.id
        case "TRACES", "session_count":
            return distinct(_noted(TRACE_SESSION))
        case "TRACES", "latency":
            return traces.c.duration_ms
        case "TRACES", _:
            return traces.c[metric]
        case "SPANS", "span_count":
            return spans.c.id
        case "SPANS", "latency":
            return (spans.c.end_ns - spans.c.start_ns) // 1_000_000
        case "SPANS", _:
            return spans.c[metric]
        case _, "assessment_count":
            return assessments.c.id
    return assessments.c.number


def _noted(key: str) -> ColumnElement[Any]:
    return select(notes.c.value).where(notes.c.trace_id == traces.c.id, notes.c.key == key).scalar_subquery()


def _dimension(name: str) -> ColumnElement[Any]:
    if name == "trace_name":
        query = select(tags.c.value).where(tags.c.trace_id == traces.c.id, tags.c.key == TRACE_NAME)
        return query.scalar_subquery()
    columns: dict[str, ColumnElement[Any]] = {
        "trace_status": traces.c.state,
        "span_name": spans.c.name,
        "span_type": spans.c.type,
        "span_status": spans.c.status,
        "span_model_name": spans.c.model_name,
        "span_model_provider": spans.c.model_provider,
        "assessment_name": assessments.c.name,
        "assessment_value": assessments.c.value,
    }
    return columns[name]


def _bucket(view: str, size_ms: int) -> ColumnElement[Any]:
    at: ColumnElement[Any] = traces.c.request_ms
    if view == "SPANS":
        at = spans.c.start_ns // 1_000_000
    elif view == "ASSESSMENTS":
        at = assessments.c.created_ms
    return at // size_ms * size_ms


def _aggregate(tx: Connection, one: Aggregation, column: ColumnElement[Any]) -> ColumnElement[Any]:
    match one.kind:
        case "COUNT":
            return func.count(column)
        case "SUM":
            return func.sum(column)
        case "AVG":
            return func.avg(column)
        case "MIN":
            return func.min(column)
        case "MAX":
            return func.max(column)
    assert one.percentile is not None
    if tx.dialect.name == "postgresql":
        return func.percentile_cont(one.percentile / 100).within_group(column)
    return func.percentile(column, one.percentile)


class _Percentile:
    """SQLite has none: between the two nearest values, as PostgreSQL's."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._percentile = 0.0

    def step(self, value: float | None, percentile: float) -> None:
        self._percentile = percentile
        if value is not None:
            self._values.append(float(value))

    def finalize(self) -> float | None:
        if not self._values:
            return None
        values = sorted(self._values)
        place = self._percentile / 100 * (len(values) - 1)
        low = int(place)
        high = min(low + 1, len(values) - 1)
        return values[low] + (place - low) * (values[high] - values[low])


def _prepare_percentiles(tx: Connection) -> None:
    if tx.dialect.name == "sqlite":
        connection: Any = tx.connection.driver_connection
        connection.create_aggregate("percentile", 2, _Percentile)


def _filter(view: str, text: str) -> ColumnElement[bool]:
    clauses = parse_filter(text)
    if len(clauses) != 1:
        raise InvalidInput(f"Invalid filter: '{text}'. Expected one filter clause.")
    [clause] = clauses
    of, entity, key = _name(clause.name)
    if clause.op != "=":
        raise InvalidInput(f"Invalid comparator: '{clause.op}', only '=' operator is supported")
    value = clause.words(f"{entity} value (e.g. 'my-value')")
    if of == "trace":
        return _trace_filter(entity, key, value)
    needed = "SPANS" if of == "span" else "ASSESSMENTS"
    if view != needed:
        raise InvalidInput(f"Filtering by {of} is only supported for {needed} view type, got {view}")
    if of == "span":
        return spans.c[entity] == value
    return (assessments.c.name if entity == "name" else assessments.c.kind) == value


def _name(name: Name) -> tuple[str, str, str]:
    if name.kind is None:
        raise InvalidInput(
            f"Invalid identifier '{name.key}'. Columns should be specified as "
            "'trace.<key>', 'span.<key>', 'assessment.<key>'."
        )
    of = name.kind
    entity, dot, rest = name.key.partition(".")
    key = unquoted(rest)
    if of not in _NAMES:
        raise InvalidInput(f"Invalid view type '{of}'. Valid values are {list(_NAMES)}")
    if entity not in _NAMES[of]:
        raise InvalidInput(
            f"Invalid entity '{entity}' specified for view type '{of}'. Valid entities are {list(_NAMES[of])}"
        )
    if _NAMES[of][entity] and not dot:
        raise InvalidInput(f"Filtering by {entity} requires a key, e.g. '{of}.{entity}.<key> = <value>'")
    if not _NAMES[of][entity] and dot:
        raise InvalidInput(f"Filtering by {entity} does not require a key, use '{of}.{entity}' instead")
    return of, entity, key


def _trace_filter(entity: str, key: str, value: str) -> ColumnElement[bool]:
    if entity == "status":
        return traces.c.state == value
    table = tags if entity == "tag" else notes
    told = exists().where(table.c.trace_id == traces.c.id, table.c.key == key, table.c.value == value)
    return or_(told, linked("run", value)) if entity == "metadata" and key == SOURCE_RUN else told
