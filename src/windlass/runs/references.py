"""Runs by what people call them: those of ours, and those that only MLflow's clients know."""

from __future__ import annotations

from sqlalchemy import Connection, exists, select

from windlass.core.errors import Ambiguous, NotFound
from windlass.core.names import nearest
from windlass.experiments.tables import tracked_runs
from windlass.experiments.types import Stage
from windlass.runs import store
from windlass.runs.records import RunRecord
from windlass.runs.tables import runs

_MOST_SHOWN = 10
_LONGEST_TAIL = 12  # letters that a name made longer by a program may have after the one that was meant


def resolve_id(tx: Connection, ref: str) -> str:
    """The id of any run: by it, its name (the newest of that name; those of ours first), or a unique beginning of its
    id. A whole name counts before a beginning: who calls a run `b` does not mean `r-b4k7…`. Raises NotFound or
    Ambiguous."""
    candidates = store.find_ids(tx, ref) if ref.startswith("r-") else store.find_ids(tx, f"r-{ref}")
    if ref in candidates:
        return ref  # asked with every batch that a job logs
    candidates += _find_tracked(tx, ref)
    if ref in candidates:
        return ref
    if found := store.find_newest_named(tx, ref):
        return found
    if len(candidates) == 1:
        return candidates[0]
    if found := _find_tracked_named(tx, ref):
        return found
    if candidates:
        raise Ambiguous(f"'{ref}' is short for several runs: {', '.join(candidates)}", hint="type one character more")
    known = [name for pair in store.recent_names(tx) for name in pair] + _recent_tracked_names(tx)
    guess = nearest(ref, known) or _longer(ref, known)
    hint = f"did you mean '{guess}'?" if guess else "`windlass search` lists all runs"
    raise NotFound(f"there is no run '{ref}'", hint=hint)


def resolve_run(tx: Connection, ref: str) -> RunRecord:
    """A run of ours. Raises NotFound, also for one that is not ours, or Ambiguous."""
    run_id = resolve_id(tx, ref)
    run = store.load_run(tx, run_id)
    if run is None:
        raise NotFound(
            f"run '{run_id}' was made by an MLflow client: it has no attempts, logs or code here",
            hint=f"`windlass show {run_id}` and `windlass artifacts ls {run_id}` show what it has",
        )
    return run


def _find_tracked(tx: Connection, prefix: str) -> list[str]:
    """Ids of runs that are not ours; a whole one also of a run that is deleted."""
    ids = tracked_runs.c.id
    wanted = (ids >= prefix, ids < prefix + "\x7f", ~exists().where(runs.c.id == ids))
    rows = tx.execute(select(ids, tracked_runs.c.stage).where(*wanted).order_by(ids).limit(_MOST_SHOWN))
    return [row.id for row in rows if row.id == prefix or row.stage == Stage.ACTIVE]


def _find_tracked_named(tx: Connection, name: str) -> str | None:
    mine = (tracked_runs.c.name == name, tracked_runs.c.stage == Stage.ACTIVE)
    found = tx.execute(select(tracked_runs.c.id).where(*mine).order_by(tracked_runs.c.start_ms.desc()).limit(1))
    return found.scalar()


def _recent_tracked_names(tx: Connection) -> list[str]:
    query = select(tracked_runs.c.name).where(tracked_runs.c.stage == Stage.ACTIVE)
    return list(tx.execute(query.order_by(tracked_runs.c.start_ms.desc()).limit(500)).scalars())


def _longer(ref: str, known: list[str]) -> str | None:
    """The newest name that begins so: `t1` is `t1-pn9f` where a program made it up."""
    return next((name for name in known if name.startswith(ref) and len(name) <= len(ref) + _LONGEST_TAIL), None)
