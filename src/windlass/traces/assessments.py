"""Queries of assessments: feedback, expectations and references to issues, each over an open transaction."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from windlass.core.errors import AlreadyExists, NotFound
from windlass.db.insertion import insert_or_replace_all
from windlass.traces.tables import assessments, traces
from windlass.traces.types import Assessment, storable, weigh


def load_assessments(tx: Connection, trace_ids: Sequence[str]) -> dict[str, list[Assessment]]:
    found: defaultdict[str, list[Assessment]] = defaultdict(list)
    for start in range(0, len(trace_ids), 500):
        query = select(assessments).where(assessments.c.trace_id.in_(list(trace_ids[start : start + 500])))
        for row in tx.execute(query.order_by(assessments.c.created_ms, assessments.c.id)):
            found[row.trace_id].append(_assessment(row))
    return found


def load_assessment(tx: Connection, trace_id: str, assessment_id: str) -> Assessment:
    """Raises NotFound, for the trace or for the assessment."""
    of_both = (assessments.c.trace_id == trace_id, assessments.c.id == assessment_id)
    row = tx.execute(select(assessments).where(*of_both)).one_or_none()
    if row is not None:
        return _assessment(row)
    if tx.execute(select(traces.c.id).where(traces.c.id == trace_id)).scalar() is None:
        raise NotFound(f"Trace with request_id '{trace_id}' not found")
    raise NotFound(f"Assessment with ID '{assessment_id}' not found for trace '{trace_id}'")


def add_assessment(tx: Connection, assessment: Assessment) -> None:
    """What it overrides is valid no more."""
    if assessment.overrides:
        overridden = (assessments.c.trace_id == assessment.trace_id, assessments.c.id == assessment.overrides)
        if tx.execute(update(assessments).where(*overridden).values(valid=False)).rowcount == 0:
            raise NotFound(f"Assessment with ID '{assessment.overrides}' not found for trace '{assessment.trace_id}'")
    try:
        with tx.begin_nested():
            tx.execute(insert(assessments).values(**_row(assessment)))
    except IntegrityError as error:
        raise AlreadyExists(
            f"Failed to create assessment for trace '{assessment.trace_id}' due to a constraint violation."
        ) from error


def put_assessments(tx: Connection, listed: Sequence[Assessment]) -> None:
    insert_or_replace_all(tx, assessments, sorted((_row(one) for one in listed), key=lambda row: str(row["id"])))


def change_assessment(tx: Connection, assessment: Assessment) -> None:
    row = _row(assessment)
    tx.execute(update(assessments).where(assessments.c.id == row.pop("id")).values(**row))


def remove_assessment(tx: Connection, trace_id: str, assessment_id: str) -> None:
    """What it overrode is valid again. One that is not there is no error."""
    of_both = (assessments.c.trace_id == trace_id, assessments.c.id == assessment_id)
    row = tx.execute(select(assessments.c.overrides).where(*of_both)).one_or_none()
    if row is None:
        return
    if row.overrides:
        tx.execute(update(assessments).where(assessments.c.id == row.overrides).values(valid=True))
    tx.execute(delete(assessments).where(*of_both))


def _row(one: Assessment) -> dict[str, Any]:
    number, is_number = weigh(one.value)
    return {
        "id": one.id,
        "trace_id": one.trace_id,
        "name": one.name,
        "kind": one.kind,
        "value": json.dumps(one.value),
        "number": number,
        "is_number": is_number,
        "error": _dumped(one.error),
        "created_ms": one.created_ms,
        "updated_ms": one.updated_ms,
        "source_type": one.source_type,
        "source_id": one.source_id,
        "run_id": one.run_id,
        "span_id": one.span_id,
        "rationale": storable(one.rationale),
        "overrides": one.overrides,
        "valid": one.valid,
        "metadata": _dumped(one.metadata),
    }


def _dumped(found: Mapping[str, Any] | None) -> str | None:
    return json.dumps(dict(found)) if found else None


def _assessment(row: Row[Any]) -> Assessment:
    return Assessment(
        id=row.id,
        trace_id=row.trace_id,
        name=row.name,
        kind=row.kind,
        value=json.loads(row.value),
        error=json.loads(row.error) if row.error else None,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
        source_type=row.source_type,
        source_id=row.source_id,
        run_id=row.run_id,
        span_id=row.span_id,
        rationale=row.rationale,
        overrides=row.overrides,
        valid=row.valid,
        metadata=json.loads(row.metadata) if row.metadata else None,
    )
