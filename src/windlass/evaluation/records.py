"""Records of data sets: how they are told apart, merged, and what they make of the data set's schema. Pure."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from windlass.core.errors import InvalidInput
from windlass.core.storable import is_storable

USER = "mlflow.user"
_SOURCES = ("UNSPECIFIED", "TRACE", "HUMAN", "DOCUMENT", "CODE")
_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "float"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    id: str
    dataset_id: str
    input_hash: str
    inputs: Mapping[str, Any]
    outputs: Any
    expectations: Mapping[str, Any] | None
    tags: Mapping[str, str] | None
    source: Mapping[str, Any] | None
    source_id: str | None
    source_type: str | None
    created_ms: int
    updated_ms: int
    created_by: str | None
    updated_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    records: Mapping[str, Record]  # by their hash
    inserted: int
    updated: int
    user: str | None  # who came last


def hash_of(inputs: Any) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def digest_of(name: str, updated_ms: int) -> str:
    return hashlib.sha256(f"{name}:{updated_ms}".encode()).hexdigest()[:8]


def check_records(given: Sequence[Any]) -> None:
    """Raises InvalidInput for what is no record."""
    for one in given:
        if not isinstance(one, Mapping):
            raise InvalidInput(f"a record is an object, not {one!r}")
        for name in ("inputs", "expectations", "tags", "source"):
            if not isinstance(one.get(name), Mapping | None):
                raise InvalidInput(f"the {name} of a record are an object, not {one[name]!r}")
        source, user = one.get("source") or {}, (one.get("tags") or {}).get(USER)
        data = source.get("source_data") or {}
        if not isinstance(data, Mapping):
            raise InvalidInput(f"the source_data of a record are an object, not {data!r}")
        for text in (user, data.get("trace_id"), data.get("source_id")):
            if not isinstance(text, str | None) or not is_storable(text or ""):
                raise InvalidInput(f"the user and the source of a record are text, not {text!r}")


def merge_records(
    dataset_id: str, given: Sequence[Mapping[str, Any]], known: Mapping[str, Record], *, now_ms: int
) -> Merge:
    """One with inputs that are there already changes that one."""
    found: dict[str, Record] = {}
    inserted, user = 0, None
    for one in given:
        tags = one.get("tags") or {}
        user = tags.get(USER) or user
        key = hash_of(one.get("inputs", {}))
        before = found.get(key) or known.get(key)
        if before is None:
            inserted += 1
            found[key] = _new(dataset_id, key, one, now_ms)
        else:
            found[key] = _changed(before, one, now_ms)
    return Merge(records=found, inserted=inserted, updated=len(given) - inserted, user=user)


def _new(dataset_id: str, key: str, given: Mapping[str, Any], now_ms: int) -> Record:
    source = _source(given.get("source"))
    data = (source or {}).get("source_data") or {}
    kind = source["source_type"] if source else None
    user = (given.get("tags") or {}).get(USER)
    return Record(
        id=f"dr-{uuid.uuid4().hex}",
        dataset_id=dataset_id,
        input_hash=key,
        inputs=given.get("inputs", {}),
        outputs=given.get("outputs", {}),
        expectations=given.get("expectations"),
        tags=given.get("tags"),
        source=source,
        source_id=data.get("trace_id" if kind == "TRACE" else "source_id"),
        source_type=kind,
        created_ms=now_ms,
        updated_ms=now_ms,
        created_by=user,
        updated_by=user,
    )


def _changed(before: Record, given: Mapping[str, Any], now_ms: int) -> Record:
    expectations, tags = given.get("expectations"), given.get("tags")
    return replace(
        before,
        outputs=given.get("outputs") if "outputs" in given else before.outputs,
        expectations={**(before.expectations or {}), **expectations} if expectations else before.expectations,
        tags={**(before.tags or {}), **tags} if tags else before.tags,
        updated_ms=now_ms,
        updated_by=(tags or {}).get(USER) or before.updated_by,
    )


def _source(given: Any) -> dict[str, Any] | None:
    if not given:
        return None
    if not isinstance(given, dict):
        raise InvalidInput(f"the source of a record is an object, not {given!r}")
    kind = str(given.get("source_type", "")).upper()
    if kind not in _SOURCES:
        raise InvalidInput(f"Invalid dataset record source type: {kind}. Valid source types: {list(_SOURCES)}")
    return {"source_type": kind, "source_data": given.get("source_data") or {}}


def extend_schema(known: str | None, given: Sequence[Mapping[str, Any]]) -> str | None:
    """Fields that are new get the type of their first value."""
    if not given and not known:
        return known
    schema: dict[str, Any] = (
        json.loads(known) if known else {"inputs": {}, "outputs": {}, "expectations": {}, "version": "1.0"}
    )
    for one in given:
        for part in ("inputs", "outputs", "expectations"):
            value = one.get(part)
            if isinstance(value, dict) and isinstance(schema[part], dict):
                for key, item in value.items():
                    schema[part].setdefault(key, type_of(item))
            elif part == "outputs" and value is not None and not schema[part]:
                schema[part] = type_of(value)
    return json.dumps(schema)


def type_of(value: Any) -> str:
    if value is None:
        return "null"
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "unknown")
