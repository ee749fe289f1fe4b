"""Issues: problems that somebody has found in traces. What can be done with them, one transaction each."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Row, case, distinct, func, insert, select, update

from windlass.core.clock import Clock
from windlass.core.errors import InvalidInput, NotFound
from windlass.core.paging import offset_of, page_token
from windlass.db.database import Database
from windlass.evaluation.tables import issues
from windlass.experiments.artifacturis import load_run_uri
from windlass.experiments.language import Clause, parse_filter
from windlass.experiments.matching import compare
from windlass.traces.store import experiment_number, load_location
from windlass.traces.tables import assessments

STATUSES = ("pending", "rejected", "resolved")
SEVERITIES = ("not_an_issue", "low", "medium", "high")  # the worst comes last
_LARGEST_PAGE = 50_000
_DEFAULT_PAGE = 100
_SEARCHED = ("source_run_id", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    id: str
    experiment_id: int
    name: str
    description: str
    status: str
    severity: str | None
    root_causes: Sequence[str]
    categories: Sequence[str]
    source_run_id: str | None
    created_ms: int
    updated_ms: int
    created_by: str | None
    trace_count: int | None = None  # None: not asked for


class IssueService:
    def __init__(self, *, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def create(
        self,
        *,
        experiment_id: str,
        name: str,
        description: str,
        status: str | None,
        severity: str | None,
        root_causes: Sequence[str],
        categories: Sequence[str],
        source_run_id: str | None,
        created_by: str | None,
    ) -> Issue:
        now = int(self._clock.now() * 1000)
        issue = Issue(
            id=f"iss-{uuid.uuid4().hex}",
            experiment_id=experiment_number(experiment_id),
            name=name,
            description=description,
            status=_one_of("status", status, STATUSES) or STATUSES[0],
            severity=_one_of("severity", severity, SEVERITIES),
            root_causes=list(root_causes),
            categories=list(categories),
            source_run_id=source_run_id,
            created_ms=now,
            updated_ms=now,
            created_by=created_by,
        )
        with self._db.write() as tx:
            load_location(tx, experiment_id, active=True)
            if source_run_id is not None and load_run_uri(tx, source_run_id) is None:
                # The last words are what MLflow's store has for it, and what its clients may look for.
                raise InvalidInput(f"there is no run '{source_run_id}' to have found it: FOREIGN KEY constraint failed")
            tx.execute(insert(issues).values(**_row(issue)))
        return issue

    def get(self, issue_id: str) -> Issue:
        with self._db.read() as tx:
            row = tx.execute(select(issues).where(issues.c.id == issue_id)).one_or_none()
        if row is None:
            raise NotFound(f"Issue with ID '{issue_id}' not found")
        return _issue(row)

    def update(
        self, issue_id: str, *, name: str | None, description: str | None, status: str | None, severity: str | None
    ) -> Issue:
        given = {
            "name": name,
            "description": description,
            "status": _one_of("status", status, STATUSES),
            "severity": _one_of("severity", severity, SEVERITIES),
        }
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        changes["updated_ms"] = int(self._clock.now() * 1000)
        with self._db.write() as tx:
            row = tx.execute(select(issues).where(issues.c.id == issue_id).with_for_update()).one_or_none()
            if row is None:
                raise NotFound(f"Issue with ID '{issue_id}' not found")
            tx.execute(update(issues).where(issues.c.id == issue_id).values(**changes))
        return replace(_issue(row), **changes)

    def search(
        self,
        *,
        experiment_id: str | None,
        filter: str | None,
        limit: int | None,
        token: str | None,
        count_traces: bool,
    ) -> tuple[list[Issue], str | None]:
        """The worst first, then those with most traces if they are counted, then the newest."""
        limit = _DEFAULT_PAGE if limit is None else limit
        if not 1 <= limit <= _LARGEST_PAGE:
            rule = "a positive integer" if limit < 1 else f"at most {_LARGEST_PAGE}"
            raise InvalidInput(f"Invalid value {limit} for parameter 'max_results' supplied. It must be {rule}")
        offset, clauses = offset_of(token), parse_filter(filter)
        order: list[ColumnElement[Any]] = [_rank().desc()]
        counted: ColumnElement[Any] = (
            select(func.count(distinct(assessments.c.trace_id)))
            .where(assessments.c.kind == "issue", assessments.c.name == issues.c.id)
            .scalar_subquery()
            .label("trace_count")
        )
        query = select(issues)
        if count_traces:
            query = query.add_columns(counted)
            order.append(counted.desc())
        with self._db.read() as tx:
            query = query.where(*(_condition(one, tx.dialect.name) for one in clauses))
            if experiment_id:
                query = query.where(issues.c.experiment_id == experiment_number(experiment_id))
            query = query.order_by(*order, issues.c.created_ms.desc(), issues.c.id.desc())
            rows = tx.execute(query.offset(offset).limit(limit + 1)).all()
        return [_issue(row) for row in rows[:limit]], page_token(offset + limit) if len(rows) > limit else None


def _rank() -> ColumnElement[Any]:
    return case({name: rank for rank, name in enumerate(SEVERITIES)}, value=issues.c.severity, else_=-1)


def _one_of(name: str, value: str | None, known: Sequence[str]) -> str | None:
    if value is not None and value not in known:
        raise InvalidInput(f"Invalid value '{value}' for parameter '{name}'; known: {', '.join(known)}")
    return value


def _condition(clause: Clause, dialect: str) -> ColumnElement[bool]:
    key = clause.name.key
    if clause.name.kind is not None or key not in _SEARCHED:
        raise InvalidInput(f"Invalid filter field '{key}'. Supported fields: {', '.join(_SEARCHED)}")
    if clause.op not in ("=", "!="):
        raise InvalidInput(f"Invalid comparator '{clause.op}'. Supported comparators: =, !=")
    return compare(issues.c[key], clause.op, clause.words(key), dialect)


def _row(issue: Issue) -> dict[str, Any]:
    row = {field.name: getattr(issue, field.name) for field in fields(issue) if field.name != "trace_count"}
    return row | {name: json.dumps(row[name]) for name in ("root_causes", "categories")}


def _issue(row: Row[Any]) -> Issue:
    found = dict(row._mapping)
    lists = {name: json.loads(found[name] or "[]") for name in ("root_causes", "categories")}
    return Issue(**{**found, **lists})
