"""Searching logged models: the names that filters and orders may use, and the query they make."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, exists, func, or_, select

from windlass.core.errors import InvalidInput
from windlass.experiments.language import MEMBERSHIP, NUMERIC, TEXTUAL, Clause, Name, check_orders, parse_filter
from windlass.experiments.matching import Dialect, compare
from windlass.experiments.tables import logged_model_metrics, logged_model_params, logged_model_tags, logged_models
from windlass.experiments.types import DatasetChoice, ModelOrder, Stage

STATUSES = {"UNSPECIFIED": 0, "PENDING": 1, "READY": 2, "FAILED": 3}

_KINDS = ("attributes", "metrics", "params", "tags")
_COLUMNS: dict[str, ColumnElement[Any]] = {
    "model_id": logged_models.c.id,
    "experiment_id": logged_models.c.experiment_id,
    "name": logged_models.c.name,
    "artifact_location": logged_models.c.artifact_location,
    "creation_timestamp_ms": logged_models.c.created_ms,
    "last_updated_timestamp_ms": logged_models.c.updated_ms,
    "status": logged_models.c.status,
    "lifecycle_stage": logged_models.c.stage,
    "model_type": logged_models.c.model_type,
    "source_run_id": logged_models.c.source_run_id,
    "status_message": logged_models.c.status_message,
}
_ALIASES = {
    **dict.fromkeys(("creation_time", "creation_timestamp"), "creation_timestamp_ms"),
    "last_updated_timestamp": "last_updated_timestamp_ms",
}
_NUMBERS = ("creation_timestamp_ms", "last_updated_timestamp_ms")
_HELD = {"params": logged_model_params, "tags": logged_model_tags}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSearch:
    experiment_ids: Sequence[str]
    filter: str | None = None
    datasets: Sequence[DatasetChoice] = ()
    order: Sequence[ModelOrder] = ()


def search_query(wanted: ModelSearch, experiments: Sequence[int], dialect: Dialect) -> Select[Any]:
    """The rows of `logged_models` that match, in their order. Raises InvalidInput."""
    clauses = parse_filter(wanted.filter)
    within = _on_datasets(wanted.datasets)
    conditions = [_condition_of(clause, within, dialect) for clause in clauses]
    if within is not None and not any(clause.name.kind == "metrics" for clause in clauses):
        conditions.append(exists().where(logged_model_metrics.c.model_id == logged_models.c.id, within))
    query = select(logged_models).where(
        logged_models.c.stage != Stage.DELETED, logged_models.c.experiment_id.in_(experiments), *conditions
    )
    return _ordered(query, wanted.order, within)


def token_of(wanted: ModelSearch, offset: int) -> str:
    """Good for the same search only."""
    return base64.b64encode(json.dumps({**_asked(wanted), "offset": offset}).encode()).decode()


def offset_in(token: str | None, wanted: ModelSearch) -> int:
    if not token:
        return 0
    try:
        held = json.loads(base64.b64decode(token, validate=True))
        offset = held.pop("offset")
    except (binascii.Error, ValueError, KeyError, AttributeError, RecursionError):
        raise InvalidInput(f"Invalid page token: {token}.") from None
    if not isinstance(offset, int) or not 0 <= offset < 2**62:
        raise InvalidInput(f"Invalid page token: {token}.")
    for name, value in json.loads(json.dumps(_asked(wanted))).items():
        if held.get(name) != value:
            differ = "do not match" if name.endswith("s") else "does not match"
            raise InvalidInput(
                f"{name[0].upper()}{name[1:]} in the page token {differ} the requested {name}."
                f" Expected: {value}. Found: {held.get(name)}"
            )
    return offset


def _asked(wanted: ModelSearch) -> dict[str, Any]:
    order = [asdict(one) for one in wanted.order]
    return {"experiment IDs": list(wanted.experiment_ids), "filter string": wanted.filter, "order by": order}


def _kind_of(name: Name) -> tuple[str, str]:
    """(kind, key)."""
    if name.kind is not None and name.kind not in _KINDS:
        raise InvalidInput(f"Invalid entity type: {name.kind!r}. Expected one of {list(_KINDS)}.")
    if name.kind not in (None, "attributes"):
        return str(name.kind), name.key
    key = _ALIASES.get(name.key, name.key)
    if key not in _COLUMNS:
        raise InvalidInput(f"Invalid attribute: {name.key!r}. Expected one of {sorted([*_COLUMNS, *_ALIASES])}.")
    return "attributes", key


def _condition_of(clause: Clause, within: ColumnElement[bool] | None, dialect: Dialect) -> ColumnElement[bool]:
    kind, key = _kind_of(clause.name)
    is_number = kind == "metrics" or key in _NUMBERS
    allowed = NUMERIC if is_number else (*TEXTUAL, *MEMBERSHIP)
    if clause.op not in allowed:
        raise InvalidInput(f"Invalid comparison operator for {kind}.{key}: {clause.op!r}. Expected one of {allowed}.")
    if kind == "metrics":
        latest = _latest(key, within)
        matches = compare(latest.c.value, clause.op, float(clause.number("metric")), dialect)
        return logged_models.c.id.in_(select(latest.c.model_id).where(matches))
    if is_number:
        return compare(_COLUMNS[key], clause.op, clause.number(f"attribute: {key}"), dialect)
    value = clause.items() if clause.has_list else clause.words(kind)
    if kind == "attributes":
        return compare(_COLUMNS[key], clause.op, _status(clause.op, value) if key == "status" else value, dialect)
    table = _HELD[kind]
    matches = compare(table.c.value, clause.op, value, dialect)
    return exists().where(table.c.model_id == logged_models.c.id, table.c.key == key, matches)


def _status(op: str, value: str | Sequence[str]) -> int | list[int]:
    if op not in ("=", "!=", *MEMBERSHIP):
        raise InvalidInput(f"Invalid comparison operator for status: {op}")
    names = [value] if isinstance(value, str) else value
    if wrong := [name for name in names if name not in STATUSES]:
        raise InvalidInput(f"Unknown model status in filter: {wrong[0]!r}; known: {', '.join(STATUSES)}")
    numbers = [STATUSES[name] for name in names]
    return numbers[0] if isinstance(value, str) else numbers


def _on_datasets(datasets: Sequence[DatasetChoice]) -> ColumnElement[bool] | None:
    if not datasets:
        return None
    each = []
    for dataset in datasets:
        same = logged_model_metrics.c.dataset_name == dataset.name
        if dataset.digest is not None:
            same = and_(same, logged_model_metrics.c.dataset_digest == dataset.digest)
        each.append(same)
    return or_(*each)


def _latest(name: str, *within: ColumnElement[bool] | None) -> Any:
    """The latest value of a metric by model: of the greatest step, then time, then value."""
    held = logged_model_metrics.c
    place = func.row_number().over(
        partition_by=held.model_id, order_by=(held.step.desc(), held.at_ms.desc(), held.value.desc())
    )
    conditions = [one for one in within if one is not None]
    ranked = select(held.model_id, held.value, place.label("place")).where(held.name == name, *conditions).subquery()
    return select(ranked.c.model_id, ranked.c.value).where(ranked.c.place == 1).subquery()


def _ordered(query: Select[Any], order: Sequence[ModelOrder], within: ColumnElement[bool] | None) -> Select[Any]:
    """Models without the value come last either way; among equals the newest comes first."""
    check_orders(order)
    joined: Any = logged_models
    by: list[ColumnElement[Any]] = []
    seen: set[str] = set()
    for one in order:
        kind, dot, key = one.field.partition(".")
        if not dot:
            key = _ALIASES.get(one.field, one.field)
            if key not in _COLUMNS:
                raise InvalidInput(f"Invalid order by field name: {one.field}")
            value = _COLUMNS[key]
            seen.add(key)
        elif kind != "metrics":
            raise InvalidInput(f"Invalid order by field name: {one.field}. Only metrics are supported.")
        else:
            latest = _latest(key, within, *_on_dataset(one))
            joined = joined.outerjoin(latest, latest.c.model_id == logged_models.c.id)
            value = latest.c.value
        by += [case((value.is_(None), 1), else_=0), value.asc() if one.ascending else value.desc()]
    if "creation_timestamp_ms" not in seen:
        by.append(logged_models.c.created_ms.desc())
    if "model_id" not in seen:
        by.append(logged_models.c.id)
    return query.select_from(joined).order_by(*by)


def _on_dataset(one: ModelOrder) -> list[ColumnElement[bool]]:
    held = logged_model_metrics.c
    pairs = ((held.dataset_name, one.dataset_name), (held.dataset_digest, one.dataset_digest))
    return [column == value for column, value in pairs if value]
