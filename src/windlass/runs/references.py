"""Runs by what people call them."""

from __future__ import annotations

from sqlalchemy import Connection

from windlass.core.errors import Ambiguous, NotFound
from windlass.core.names import nearest
from windlass.runs import store
from windlass.runs.records import RunRecord


def resolve_run(tx: Connection, ref: str) -> RunRecord:
    """A run by its id, a unique beginning of it, or its name (the newest of that name). Raises NotFound or
    Ambiguous."""
    candidates = store.find_ids(tx, ref) if ref.startswith("r-") else store.find_ids(tx, f"r-{ref}")
    if ref in candidates:
        candidates = [ref]
    run_id = candidates[0] if len(candidates) == 1 else store.find_newest_named(tx, ref)
    if run_id is None and len(candidates) > 1:
        raise Ambiguous(f"'{ref}' is short for several runs: {', '.join(candidates)}", hint="type one character more")
    if run_id is None:
        known = store.recent_names(tx)
        guess = nearest(ref, [name for pair in known for name in pair])
        hint = f"did you mean '{guess}'?" if guess else "`windlass ps -a` lists all runs"
        raise NotFound(f"there is no run '{ref}'", hint=hint)
    run = store.load_run(tx, run_id)
    assert run is not None  # found in this very transaction
    return run
