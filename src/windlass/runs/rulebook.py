"""Rules of runs in the database: what each has seen, and what follows when one applies: an alert among the run's
events, and maybe its end.

`heed_values` belongs into the transaction that stores the values, so that each is judged once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    and_,
    insert,
    select,
    update,
)

from windlass.core.ids import slot_of
from windlass.db.metadata import Json, metadata
from windlass.runs import store
from windlass.runs.records import RunRecord
from windlass.runs.rules import Finding, Value, Watched, judge_silence, judge_values
from windlass.runs.tables import attempts, runs
from windlass.runs.types import AttemptState, EventKind, RunState
from windlass.tracking.blocks import Logged
from windlass.tracking.points import MetricPoint
from windlass.wire.figures import spelled
from windlass.wire.rules import RuleSpec, Then

_TRIES = 5

run_rules = Table(
    "run_rules",
    metadata,
    Column("run_id", String(32), ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # its place in the spec
    Column("rule", Json, nullable=False),
    Column("watched", Json, nullable=False),
    Column("silent", Boolean, nullable=False),  # it has to be looked at though nothing comes
    Index("ix_run_rules_silent", "silent", "run_id"),
)


class Quiet(NamedTuple):
    """A rule whose run says nothing; `since` then at the earliest."""

    run_id: str
    number: int
    since: float


def insert_rules(tx: Connection, run_id: str, rules: Sequence[Mapping[str, Any]]) -> None:
    """`rules`: as the stored spec has them."""
    rows = [
        {
            "run_id": run_id,
            "number": number,
            "rule": dict(rule),
            "watched": Watched().as_json(),
            "silent": RuleSpec.model_validate(rule).silent is not None,
        }
        for number, rule in enumerate(rules)
    ]
    if rows:
        tx.execute(insert(run_rules), rows)


def heed_points(
    tx: Connection, run_id: str, points: Iterable[MetricPoint], *, now: float, may_stop: bool = True
) -> None:
    values = (Value(name, point.step, point.at, value) for point in points for name, value in point.values.items())
    heed_values(tx, run_id, values, now=now, may_stop=may_stop)


def heed_logged(tx: Connection, run_id: str, values: Sequence[Logged], *, now: float) -> None:
    """What MLflow's clients log."""
    heed_values(tx, run_id, (Value(one.name, one.step, one.at, one.value) for one in values), now=now)


def heed_values(tx: Connection, run_id: str, values: Iterable[Value], *, now: float, may_stop: bool = True) -> None:
    """`may_stop`: not if the run's end is about to be written, by somebody who has loaded it."""
    rows = tx.execute(select(run_rules).where(run_rules.c.run_id == run_id).order_by(run_rules.c.number)).all()
    if not rows:
        return
    seen = list(values)
    for row in rows:
        before = Watched.from_json(row.watched)
        after, findings = judge_values(RuleSpec.model_validate(row.rule), before, seen)
        _put(tx, row, before, after)
        for finding in findings:
            _tell(tx, run_id, row.number, finding, now=now, may_stop=may_stop)


def load_quiet(tx: Connection, *, now: float, since: float, slots: store.Slots = None) -> list[Quiet]:
    """Rules about runs that seem to have been quiet for too long, and have not said so. `since`: when somebody began to
    listen; what was said before may have been missed."""
    joined = run_rules.join(runs, runs.c.id == run_rules.c.run_id).join(
        attempts, and_(attempts.c.run_id == runs.c.id, attempts.c.number == runs.c.attempt_count)
    )
    heard = and_(attempts.c.state == AttemptState.RUNNING, attempts.c.unknown_since.is_(None))
    query = select(run_rules, attempts.c.started_at).select_from(joined)
    rows = tx.execute(query.where(run_rules.c.silent, runs.c.state == RunState.RUNNING, heard)).all()
    mine = [row for row in rows if slots is None or slot_of(row.run_id) in slots]
    found = [Quiet(row.run_id, row.number, max(since, row.started_at or now)) for row in mine]
    return [one for row, one in zip(mine, found, strict=True) if _silence(row, one, now)[2] is not None]


def commit_quiet(tx: Connection, found: Sequence[Quiet], *, now: float) -> None:
    """Judged again: what has been stored since may say otherwise."""
    for one in found:
        mine = and_(run_rules.c.run_id == one.run_id, run_rules.c.number == one.number)
        row = tx.execute(select(run_rules).where(mine).with_for_update()).first()
        if row is not None:
            before, after, finding = _silence(row, one, now)
            _put(tx, row, before, after)
            if finding is not None:
                _tell(tx, one.run_id, one.number, finding, now=now)


def _silence(row: Any, one: Quiet, now: float) -> tuple[Watched, Watched, Finding | None]:
    before = Watched.from_json(row.watched)
    after, finding = judge_silence(RuleSpec.model_validate(row.rule), before, since=one.since, now=now)
    return before, after, finding


def _put(tx: Connection, row: Any, before: Watched, after: Watched) -> None:
    if after != before:
        mine = (run_rules.c.run_id == row.run_id, run_rules.c.number == row.number)
        tx.execute(update(run_rules).where(*mine).values(watched=after.as_json()))


def _tell(tx: Connection, run_id: str, number: int, finding: Finding, *, now: float, may_stop: bool = True) -> None:
    run = store.load_run(tx, run_id)
    if run is None:
        return
    at = "" if finding.step is None else f" at step {finding.step:,}"
    store.record_event(
        tx,
        run_id,
        EventKind.ALERT,
        at=finding.at,
        attempt=run.attempt_count or None,
        message=f"rule {number + 1}{at}: {finding.message}",
        data={
            "kind": "rule",
            "rule": number,
            "metric": finding.metric,
            "value": None if finding.value is None else spelled(finding.value),
            "step": finding.step,
            "then": finding.then.value,
        },
    )
    if may_stop and finding.then is Then.STOP:
        _stop(tx, run, number, finding, now=now)


def _stop(tx: Connection, run: RunRecord | None, number: int, finding: Finding, *, now: float) -> None:
    why = f"stopped by rule {number + 1}: {finding.message}"
    for _ in range(_TRIES):
        if run is None or not run.state.is_live or run.cancelling:
            return
        try:
            store.annotate(
                tx,
                run,
                EventKind.CANCEL_REQUESTED,
                now=now,
                message=f"{why}; grace {run.spec.grace:g} s",
                data={"why": why},
                cancel_requested_at=now,
                cancel_grace_s=run.spec.grace,
            )
            return
        except store.ChangedMeanwhile:  # by a controller, at this moment
            run = store.load_run(tx, run.id)
