"""Data sets for evaluations: what can be done with them, one transaction each, and their queries."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, exists, func, insert, or_, select, update

from windlass.core.clock import Clock
from windlass.core.errors import InvalidInput, NotFound
from windlass.core.paging import offset_of, page_token
from windlass.core.storable import is_storable
from windlass.db.database import Database
from windlass.db.insertion import insert_missing, insert_or_replace_all
from windlass.evaluation.records import USER, Record, check_records, digest_of, extend_schema, hash_of, merge_records
from windlass.evaluation.tables import dataset_experiments, dataset_tags, datasets, records
from windlass.experiments.language import Clause, parse_filter, parse_order
from windlass.experiments.matching import compare
from windlass.experiments.tables import experiments
from windlass.traces.store import experiment_number

_COLUMNS: Mapping[str, ColumnElement[Any]] = {
    "name": datasets.c.name,
    "created_time": datasets.c.created_ms,
    "last_update_time": datasets.c.updated_ms,
    "created_by": datasets.c.created_by,
    "last_updated_by": datasets.c.updated_by,
}
_NUMBERS = ("created_time", "last_update_time")
_ORDERS = ("name", *_NUMBERS)
_JSON = ("inputs", "outputs", "expectations", "tags", "source")
_AT_ONCE = 500
_LARGEST_PAGE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    id: str
    name: str
    digest: str
    schema: str | None
    profile: str | None
    created_ms: int
    updated_ms: int
    created_by: str | None
    updated_by: str | None
    tags: Mapping[str, str]
    experiment_ids: Sequence[str] | None = None  # None: not asked for


class DatasetService:
    def __init__(self, *, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def create(self, name: str, *, tags: Mapping[str, Any], experiment_ids: Sequence[str]) -> Dataset:
        now, user = self._now(), str(tags[USER]) if tags.get(USER) else None
        dataset = Dataset(
            id=f"d-{uuid.uuid4().hex}",
            name=name,
            digest=digest_of(name, now),
            schema=None,
            profile=None,
            created_ms=now,
            updated_ms=now,
            created_by=user,
            updated_by=user,
            tags={key: str(value) for key, value in tags.items()},
            experiment_ids=list(experiment_ids),
        )
        with self._db.write() as tx:
            columns = ("id", "name", "digest", "created_ms", "updated_ms", "created_by", "updated_by")
            tx.execute(insert(datasets).values({column: getattr(dataset, column) for column in columns}))
            _put_tags(tx, dataset.id, dataset.tags)
            _put_experiments(tx, dataset.id, experiment_ids)
        return dataset

    def get(self, dataset_id: str) -> Dataset:
        with self._db.read() as tx:
            return _load(tx, dataset_id, f"Evaluation dataset with id '{dataset_id}' not found")

    def delete(self, dataset_id: str) -> None:
        """One that is not there is no error."""
        with self._db.write() as tx:
            tx.execute(delete(datasets).where(datasets.c.id == dataset_id))

    def search(
        self,
        *,
        experiment_ids: Sequence[str] = (),
        filter: str | None = None,
        order_by: Sequence[str] = (),
        limit: int = 1000,
        token: str | None = None,
    ) -> tuple[list[Dataset], str | None]:
        limit = _page(limit)
        clauses, orders, offset = parse_filter(filter), [_order(text) for text in order_by], offset_of(token)
        with self._db.read() as tx:
            query = select(datasets).where(*(_condition(one, tx.dialect.name) for one in clauses))
            if experiment_ids:
                chosen = dataset_experiments.c.experiment_id.in_([str(id) for id in experiment_ids])
                query = query.where(datasets.c.id.in_(select(dataset_experiments.c.dataset_id).where(chosen)))
            query = query.order_by(*(orders or [datasets.c.created_ms.desc()]), datasets.c.id)
            rows = tx.execute(query.offset(offset).limit(limit + 1)).all()
            found = _assemble(tx, rows[:limit])
        return found, page_token(offset + limit) if len(rows) > limit else None

    def set_tags(self, dataset_id: str, tags: Mapping[str, Any]) -> None:
        with self._db.write() as tx:
            _load(tx, dataset_id, f"Could not find evaluation dataset with ID {dataset_id}")
            _put_tags(tx, dataset_id, {key: str(value) for key, value in tags.items() if value is not None})

    def delete_tag(self, dataset_id: str, key: str) -> None:
        with self._db.write() as tx:
            of_both = (dataset_tags.c.dataset_id == dataset_id, dataset_tags.c.key == key)
            tx.execute(delete(dataset_tags).where(*of_both))

    def upsert(self, dataset_id: str, given: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        """How many were new, and how many have changed."""
        check_records(given)
        now = self._now()
        with self._db.write() as tx:
            dataset = _load(tx, dataset_id, f"Dataset '{dataset_id}' not found", locked=True)
            known = _load_by_hash(tx, dataset_id, [hash_of(one.get("inputs", {})) for one in given])
            merged = merge_records(dataset_id, given, known, now_ms=now)
            insert_or_replace_all(
                tx, records, sorted((_row(one) for one in merged.records.values()), key=lambda row: str(row["id"]))
            )
            count = int(
                tx.execute(
                    select(func.count()).select_from(records).where(records.c.dataset_id == dataset_id)
                ).scalar_one()
            )
            tx.execute(
                update(datasets)
                .where(datasets.c.id == dataset_id)
                .values(
                    updated_ms=now,
                    updated_by=merged.user,
                    digest=digest_of(dataset.name, now),
                    schema=extend_schema(dataset.schema, given),
                    profile=json.dumps({"num_records": count}) if count else dataset.profile,
                )
            )
        return merged.inserted, merged.updated

    def records(self, dataset_id: str, *, limit: int, token: str | None) -> tuple[list[Record], str | None]:
        """In the order in which they came."""
        limit = _page(limit)
        query = select(records).where(records.c.dataset_id == dataset_id)
        if token:
            created_ms, last = _cursor(token)
            later = and_(records.c.created_ms == created_ms, records.c.id > last)
            query = query.where(or_(records.c.created_ms > created_ms, later))
        with self._db.read() as tx:
            rows = tx.execute(query.order_by(records.c.created_ms, records.c.id).limit(limit + 1)).all()
        found = [_record(row) for row in rows[:limit]]
        if len(rows) <= limit:
            return found, None
        return found, base64.b64encode(f"{found[-1].created_ms}:{found[-1].id}".encode()).decode()

    def delete_records(self, dataset_id: str, ids: Sequence[str]) -> int:
        with self._db.write() as tx:
            dataset = _load(tx, dataset_id, f"Dataset '{dataset_id}' not found", locked=True)
            gone = 0
            for start in range(0, len(ids), _AT_ONCE):
                chosen = records.c.id.in_(list(ids[start : start + _AT_ONCE]))
                gone += tx.execute(delete(records).where(records.c.dataset_id == dataset_id, chosen)).rowcount
            if gone:
                before = (json.loads(dataset.profile) if dataset.profile else None) or {}
                left = max(0, before.get("num_records", 0) - gone)
                profile = json.dumps({"num_records": left} if left else None)
                tx.execute(update(datasets).where(datasets.c.id == dataset_id).values(profile=profile))
        return gone

    def experiment_ids(self, dataset_id: str) -> list[str]:
        with self._db.read() as tx:
            return _load_experiments(tx, dataset_id)

    def add_experiments(self, dataset_id: str, experiment_ids: Sequence[str]) -> Dataset:
        with self._db.write() as tx:
            _load(tx, dataset_id, f"Dataset '{dataset_id}' not found")
            for id in experiment_ids:
                _check_experiment(tx, id)
            _put_experiments(tx, dataset_id, experiment_ids)
            return self._touched(tx, dataset_id)

    def remove_experiments(self, dataset_id: str, experiment_ids: Sequence[str]) -> Dataset:
        with self._db.write() as tx:
            _load(tx, dataset_id, f"Dataset '{dataset_id}' not found")
            chosen = dataset_experiments.c.experiment_id.in_([str(id) for id in experiment_ids])
            of_both = (dataset_experiments.c.dataset_id == dataset_id, chosen)
            if tx.execute(delete(dataset_experiments).where(*of_both)).rowcount:
                return self._touched(tx, dataset_id)
            return _load(tx, dataset_id, "")

    def _touched(self, tx: Connection, dataset_id: str) -> Dataset:
        tx.execute(update(datasets).where(datasets.c.id == dataset_id).values(updated_ms=self._now()))
        return _load(tx, dataset_id, "")

    def _now(self) -> int:
        return int(self._clock.now() * 1000)


def _load(tx: Connection, dataset_id: str, missing: str, *, locked: bool = False) -> Dataset:
    query = select(datasets).where(datasets.c.id == dataset_id)
    row = tx.execute(query.with_for_update() if locked else query).one_or_none()
    if row is None:
        raise NotFound(missing)
    [dataset] = _assemble(tx, [row])
    return dataset


def _assemble(tx: Connection, rows: Sequence[Row[Any]]) -> list[Dataset]:
    tags: dict[str, dict[str, str]] = {}
    ids = [row.id for row in rows]
    for start in range(0, len(ids), _AT_ONCE):
        chosen = dataset_tags.c.dataset_id.in_(ids[start : start + _AT_ONCE])
        for dataset_id, key, value in tx.execute(select(dataset_tags).where(chosen)):
            tags.setdefault(dataset_id, {})[key] = value
    return [Dataset(**row._mapping, tags=tags.get(row.id, {})) for row in rows]


def _put_tags(tx: Connection, dataset_id: str, tags: Mapping[str, str]) -> None:
    rows = [{"dataset_id": dataset_id, "key": key, "value": value} for key, value in sorted(tags.items())]
    insert_or_replace_all(tx, dataset_tags, rows)


def _put_experiments(tx: Connection, dataset_id: str, experiment_ids: Sequence[str]) -> None:
    named = sorted({str(id) for id in experiment_ids})
    insert_missing(tx, dataset_experiments, [{"dataset_id": dataset_id, "experiment_id": id} for id in named])


def _load_experiments(tx: Connection, dataset_id: str) -> list[str]:
    query = select(dataset_experiments.c.experiment_id).where(dataset_experiments.c.dataset_id == dataset_id)
    return list(tx.execute(query.order_by(dataset_experiments.c.experiment_id)).scalars())


def _check_experiment(tx: Connection, experiment_id: str) -> None:
    number = experiment_number(experiment_id)
    if tx.execute(select(experiments.c.id).where(experiments.c.id == number)).scalar() is None:
        raise NotFound(f"No Experiment with id={experiment_id}")


def _load_by_hash(tx: Connection, dataset_id: str, hashes: Sequence[str]) -> dict[str, Record]:
    found = {}
    for start in range(0, len(hashes), _AT_ONCE):
        chosen = records.c.input_hash.in_(list(hashes[start : start + _AT_ONCE]))
        for row in tx.execute(select(records).where(records.c.dataset_id == dataset_id, chosen)):
            found[row.input_hash] = _record(row)
    return found


def _row(record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in Record.__slots__}
    return row | {name: json.dumps(row[name]) if row[name] is not None else None for name in _JSON}


def _record(row: Row[Any]) -> Record:
    found = dict(row._mapping)
    return Record(**(found | {name: json.loads(found[name]) if found[name] else None for name in _JSON}))


def _cursor(token: str) -> tuple[int, str]:
    try:
        at, _, last = base64.b64decode(token).decode().partition(":")
        created_ms = int(at)
    except ValueError:
        raise InvalidInput(f"Invalid page token '{token}'") from None
    if abs(created_ms) >= 2**63 or not is_storable(last):
        raise InvalidInput(f"Invalid page token '{token}'")
    return created_ms, last


def _page(limit: int) -> int:
    """Who asks for more gets the rest with the next one."""
    if limit < 1:
        raise InvalidInput(f"Invalid value {limit} for parameter 'max_results' supplied. It must be a positive integer")
    return min(limit, _LARGEST_PAGE)


def _condition(clause: Clause, dialect: str) -> ColumnElement[bool]:
    name = clause.name
    if name.kind is not None:
        if name.kind != "tags":
            raise InvalidInput(f"Invalid identifier token '{name.kind}' specified")
        if clause.op not in ("=", "!=", "LIKE", "ILIKE"):
            raise InvalidInput(f"Invalid comparator for tag: {clause.op}")
        value = clause.words("tag (e.g. 'my-value')")
        return exists().where(
            dataset_tags.c.dataset_id == datasets.c.id,
            dataset_tags.c.key == name.key,
            compare(dataset_tags.c.value, clause.op, value, dialect),
        )
    if name.key not in _COLUMNS:
        raise InvalidInput(f"Invalid attribute key '{name.key}' specified. Valid keys are: {sorted(_COLUMNS)}")
    if name.key in _NUMBERS:
        if clause.op not in ("=", "!=", "<", "<=", ">", ">="):
            raise InvalidInput(f"Invalid comparator for numeric attribute: {clause.op}")
        number = clause.number(f"numeric attribute: {name.key}")
        return compare(_COLUMNS[name.key], clause.op, number, dialect)
    if clause.op not in ("=", "!=", "LIKE", "ILIKE"):
        raise InvalidInput(f"Invalid comparator for string attribute: {clause.op}")
    return compare(_COLUMNS[name.key], clause.op, clause.words("attributes"), dialect)


def _order(text: str) -> ColumnElement[Any]:
    name, ascending = parse_order(text)
    if name.kind is not None or name.key not in _ORDERS:
        raise InvalidInput(f"Invalid attribute key '{name.key}' specified. Valid keys are: {sorted(_ORDERS)}")
    column = _COLUMNS[name.key]
    return column.asc() if ascending else column.desc()
