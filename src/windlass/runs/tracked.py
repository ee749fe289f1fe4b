"""The other face of a run: its row among the runs that MLflow's clients see, written when it is submitted and kept in
step with its state. What is logged there comes back as the run's tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, case, or_, select, update

from windlass.core.errors import InvalidInput
from windlass.core.wanted import PLAN_TAG
from windlass.db.database import Database
from windlass.experiments import runstore
from windlass.experiments.catalogue import experiment_named, experiment_of_project, load_named
from windlass.experiments.locations import own_location, run_location
from windlass.experiments.rules import LONGEST_KEY, LONGEST_PARAM, LONGEST_TAG
from windlass.experiments.tables import tracked_runs
from windlass.experiments.types import RUN_NAME, Pair, RunInfo, RunStatus, Stage
from windlass.runs.bulk import update_each
from windlass.runs.tables import runs
from windlass.runs.types import RunState

_STATUS = {
    RunState.QUEUED: RunStatus.SCHEDULED,
    RunState.STARTING: RunStatus.SCHEDULED,
    RunState.RUNNING: RunStatus.RUNNING,
    RunState.RECOVERING: RunStatus.SCHEDULED,
    RunState.SUCCEEDED: RunStatus.FINISHED,
    RunState.FAILED: RunStatus.FAILED,
    RunState.CANCELLED: RunStatus.KILLED,
}
_MLFLOWS = "mlflow."  # tags that its clients keep for themselves
_AT_ONCE = 200  # runs in one write: nobody is to wait for long
_BY_STATE = {state.value: status.value for state, status in _STATUS.items()}
_BEHIND = (
    select(runs.c.id)
    .outerjoin(tracked_runs, tracked_runs.c.id == runs.c.id)
    .where(or_(tracked_runs.c.id.is_(None), tracked_runs.c.status != case(_BY_STATE, value=runs.c.state)))
    .order_by(runs.c.id)
)


def check_experiment(tx: Connection, name: str | None) -> None:
    """Raises InvalidInput for one that is deleted: MLflow's client would refuse it when the script has begun."""
    if name is not None and (found := load_named(tx, name)) is not None and found.stage != Stage.ACTIVE:
        raise InvalidInput(
            f"the experiment '{name}' is deleted",
            hint="restore it (`mlflow experiments restore`), or choose another by `experiment: NAME`",
        )


def insert_tracked(tx: Connection, row: Mapping[str, Any]) -> None:
    """`row`: of a new run."""
    runstore.insert_run(tx, _info(tx, row), list(flat_params(row["spec"].get("params") or {})), _tags(row))


def catch_up(db: Database) -> int:
    """Runs that a server of the version before has submitted or moved on get here what they lack, as long as there may
    be such servers. How many there were. Safe to do in several servers at once, and again."""
    with db.read() as tx:
        ids = list(tx.execute(_BEHIND).scalars())
    for start in range(0, len(ids), _AT_ONCE):
        with db.write() as tx:
            _catch_up(tx, ids[start : start + _AT_ONCE])
    return len(ids)


def _catch_up(tx: Connection, ids: Sequence[str]) -> None:
    # Locked, and so as they are now: who moves a run on writes its row first, and this one after it.
    query = select(runs).where(runs.c.id.in_(ids)).order_by(runs.c.id).with_for_update()
    rows = [row._asdict() for row in tx.execute(query)]
    there = set(tx.execute(select(tracked_runs.c.id).where(tracked_runs.c.id.in_(ids))).scalars())
    for row in rows:
        if row["id"] not in there:
            insert_tracked(tx, row)
    update_each(tx, tracked_runs, [({"id": row["id"]}, _moment(row)) for row in rows if row["id"] in there])


def _moment(row: Mapping[str, Any]) -> dict[str, Any]:
    """What changes of a run by itself."""
    began_at, ended_at = row.get("started_at") or row["submitted_at"], row.get("ended_at")
    return {
        "status": _STATUS[row["state"]],
        "start_ms": int(began_at * 1000),
        "end_ms": None if ended_at is None else int(ended_at * 1000),
    }


def _info(tx: Connection, row: Mapping[str, Any]) -> RunInfo:
    now_ms, name = int(row["submitted_at"] * 1000), row["spec"].get("experiment")
    if name is None:
        number = experiment_of_project(tx, row["project"], now_ms=now_ms)
    else:
        number = experiment_named(tx, name, now_ms=now_ms)
    return RunInfo(
        id=row["id"],
        experiment_id=number,
        name=row["name"],
        user=row["user"] or "",
        **_moment(row),
        stage=Stage.ACTIVE,
        artifact_uri=run_location(own_location(number), row["id"]),
    )


def follow(tx: Connection, moved: Iterable[tuple[str, RunState, RunState, Mapping[str, Any]]]) -> None:
    """(run, state before, state after, what else has changed of it)."""
    changed = []
    for run_id, before, after, changes in moved:
        if _STATUS[before] is not _STATUS[after]:
            started_at, ended_at = changes.get("started_at"), changes.get("ended_at")
            values: dict[str, Any] = {"status": _STATUS[after]}
            if started_at is not None:
                values["start_ms"] = int(started_at * 1000)
            if after.is_terminal or before.is_terminal:
                values["end_ms"] = None if ended_at is None else int(ended_at * 1000)
            changed.append(({"id": run_id}, values))
    if changed:
        update_each(tx, tracked_runs, changed)


def put_own_tags(tx: Connection, run_id: str, tags: Mapping[str, str | None]) -> None:
    """What a client has set on a run, or removed, among the tags that Windlass shows. No version is counted: nothing is
    decided by tags."""
    given = {key: value for key, value in tags.items() if not key.startswith(_MLFLOWS)}
    if not given:
        return
    held = tx.execute(select(runs.c.tags).where(runs.c.id == run_id).with_for_update(key_share=True)).scalar()
    if held is not None:
        after = {key: value for key, value in {**held, **given}.items() if value is not None}
        tx.execute(update(runs).where(runs.c.id == run_id).values(tags=after))


def record_plan(tx: Connection, run_id: str, plan: str | None) -> None:
    """What a job says of its plan becomes a tag. Whoever calls holds the run's lock of metrics."""
    if plan is not None:
        put_own_tags(tx, run_id, {PLAN_TAG: plan})
        runstore.put_tags(tx, run_id, [Pair(PLAN_TAG, plan)])


def flat_params(params: Mapping[str, Any], prefix: str = "") -> Iterator[Pair]:
    """As text, a param within another one by the path to it."""
    for name, value in params.items():
        if isinstance(value, dict) and value:
            yield from flat_params(value, f"{prefix}{name}.")
        else:
            yield Pair(f"{prefix}{name}"[:LONGEST_KEY], str(value)[:LONGEST_PARAM])


def _tags(row: Mapping[str, Any]) -> list[Pair]:
    found = {RUN_NAME: row["name"], "mlflow.user": row["user"] or "", "mlflow.source.type": "JOB"}
    spec, origin = row["spec"], row["origin"] or {}
    if source := spec.get("script") or spec.get("recipe"):
        found["mlflow.source.name"] = source
    if commit := (origin.get("git") or {}).get("commit"):
        found["mlflow.source.git.commit"] = commit
    found |= {key[:LONGEST_KEY]: str(value)[:LONGEST_TAG] for key, value in row["tags"].items()}
    return [Pair(key, value) for key, value in found.items()]
