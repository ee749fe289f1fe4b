"""When a run has caught up after an attempt that failed: level, steps lost and times, for the record. Pure.

Ranks tell their steps, so that it is known where an attempt died and when the next was beyond that. Of runs that tell
none nothing is said. A node that dies without a word may have told less than the run has logged: then that counts.
Times of several machines are compared: what comes out negative is nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.engines.contract import Observation
from windlass.runs.records import AttemptRecord
from windlass.tracking.points import ProgressMark, Teller


def progress_at_end(attempt: AttemptRecord, logged: ProgressMark | None) -> dict[str, Any] | None:
    """The usage of an attempt that is over, if its run has `logged` a later step than its ranks had told; else None."""
    told = _progress(attempt.usage)
    if logged is None or logged.teller not in (None, Teller.JOB) or logged.at < attempt.created_at:
        return None  # nothing, somebody else's count, or an earlier attempt's
    if told is not None and logged.step <= int(told["step"]):
        return None
    steps = max(1, logged.step - logged.first_step)
    known = told or {"restored_step": None, "restored_at": None, "load_s": None}
    return {**(attempt.usage or {}), "progress": {**known, "step": logged.step, "at": logged.at, "steps": steps}}


def decide_comeback(before: AttemptRecord, attempt: AttemptRecord, seen: Observation) -> dict[str, Any] | None:
    """The record of it, once `attempt` has finished a step that `before` had not; in the form of those in place, see
    `windlass.agent.recovery`."""
    died, told = _progress(before.usage), _progress(seen.usage)
    if died is None or told is None or before.exit is None or before.ended_at is None:
        return None
    step = int(died["step"])
    if not told["steps"] or int(told["step"]) <= step:
        return None
    restored_at = told["restored_at"]
    went_on_from = int(told["restored_step"]) if restored_at is not None else int(told["step"]) - int(told["steps"])
    ready_at = restored_at or seen.started_at or attempt.created_at
    load_s = float(told["load_s"] or 0.0)
    # Looked at now and then: how far it was at the very moment is taken from its pace since.
    part = (step + 1 - went_on_from) / max(1, int(told["step"]) - went_on_from)
    beyond_at = ready_at + min(1.0, max(0.0, part)) * (float(told["at"]) - ready_at)
    return {
        "level": _level(before, attempt),
        "attempt": attempt.number,
        "nodes": len(attempt.placement.shares),
        "at": before.ended_at,
        "rank": before.exit.rank,
        "node": before.exit.node,
        "reason": before.exit.reason.value,
        "message": before.exit.message[:500],
        "step": step,
        "restored_step": told["restored_step"],
        "steps_lost": max(0, step - max(went_on_from, -1)),
        "detect_s": _span(float(died["at"]), before.ended_at) if died["at"] else None,
        "decide_s": _span(before.ended_at, attempt.created_at),
        "respawn_s": _span(attempt.created_at, ready_at - load_s),
        "load_s": load_s if restored_at is not None else None,
        "replay_s": _span(ready_at, beyond_at),
    }


def _level(before: AttemptRecord, attempt: AttemptRecord) -> int:
    """2: on the same nodes, 3: on others, 4: on more or fewer."""
    if len(before.placement.shares) != len(attempt.placement.shares):
        return 4
    places = [(one.placement.engine, sorted(share.node for share in one.placement.shares)) for one in (before, attempt)]
    return 2 if places[0] == places[1] else 3


def _progress(usage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """As `windlass.agent.progress.tell` writes it; of nodes of older versions there is none."""
    found = (usage or {}).get("progress")
    names = ("step", "at", "steps", "restored_step", "restored_at", "load_s")
    if not isinstance(found, Mapping) or any(name not in found for name in names):
        return None
    is_told = all(found[name] is None or isinstance(found[name], int | float) for name in names)
    return found if is_told and None not in (found["step"], found["steps"]) else None


def _span(begin: float, end: float) -> float:
    return round(max(0.0, end - begin), 3)
