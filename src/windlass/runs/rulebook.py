"""Rules of runs in the database: what each has seen, and what follows when one applies: an alert among the run's
events, and maybe its end.

`heed_values` belongs into the transaction that stores the values, so that each is judged once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Boolean, Column, Connection, ForeignKey, Index, Integer, String, Table, insert, select, update

from windlass.core.ids import slot_of
from windlass.db.metadata import Json, metadata
from windlass.runs import store
from windlass.runs.records import RunRecord
from windlass.runs.rules import Finding, Value, Watched, judge_silence, judge_values
from windlass.runs.tables import runs
from windlass.runs.types import EventKind
from windlass.tracking.blocks import Logged
from windlass.tracking.points import MetricPoint
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
    row: Any
    before: Watched
    after: Watched
    finding: Finding


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


def load_quiet(tx: Connection, *, now: float, slots: store.Slots = None) -> list[Quiet]:
    """Rules about runs that have been quiet for too long, and have not said so."""
    live = run_rules.join(runs, runs.c.id == run_rules.c.run_id)
    query = select(run_rules, runs.c.started_at).select_from(live)
    rows = tx.execute(query.where(run_rules.c.silent, runs.c.state.in_(list(store.LIVE)))).all()
    found = []
    for row in rows:
        if row.started_at is None or (slots is not None and slot_of(row.run_id) not in slots):
            continue
        before = Watched.from_json(row.watched)
        after, finding = judge_silence(RuleSpec.model_validate(row.rule), before, since=row.started_at, now=now)
        if finding is not None:
            found.append(Quiet(row, before, after, finding))
    return found


def commit_quiet(tx: Connection, found: Sequence[Quiet], *, now: float) -> None:
    for row, before, after, finding in found:
        _put(tx, row, before, after)
        _tell(tx, row.run_id, row.number, finding, now=now)


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
        data={"kind": "rule", "rule": number, "step": finding.step, "then": finding.then.value},
    )
    if may_stop and finding.then is Then.STOP:
        _stop(tx, run, number, finding, now=now)


def _stop(tx: Connection, run: RunRecord | None, number: int, finding: Finding, *, now: float) -> None:
    for _ in range(_TRIES):
        if run is None or not run.state.is_live or run.cancelling:
            return
        try:
            store.annotate(
                tx,
                run,
                EventKind.CANCEL_REQUESTED,
                now=now,
                message=f"stopped by its rule {number + 1}: {finding.message}; grace {run.spec.grace:g} s",
                cancel_requested_at=now,
                cancel_grace_s=run.spec.grace,
            )
            return
        except store.ChangedMeanwhile:  # by a controller, at this moment
            run = store.load_run(tx, run.id)
