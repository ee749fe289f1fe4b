"""Putting on record that a run came back after a failure, in place or by another attempt: one event for each time,
exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from windlass.core.storable import storable
from windlass.engines.contract import Observation
from windlass.runs import store
from windlass.runs.records import AttemptRecord
from windlass.runs.types import EventKind

_TIMES = ("detect", "decide", "respawn", "load", "replay")


def news_of(seen: Observation, attempt: AttemptRecord) -> list[Mapping[str, Any]]:
    """What is not on record yet. Generations are counted, so the highest one on record says all."""
    return [entry for entry in seen.recoveries if int(entry["generation"]) > attempt.recoveries]


def commit_recoveries(
    tx: Connection, attempt: AttemptRecord, entries: Sequence[Mapping[str, Any]], *, now: float
) -> None:
    """In one transaction with the number that says which are on record."""
    for entry in entries:
        _record(tx, attempt, entry, now=now)
    store.update_attempts(tx, {attempt.id: {"recoveries": int(entries[-1]["generation"])}})


def commit_comeback(tx: Connection, attempt: AttemptRecord, entry: Mapping[str, Any], *, now: float) -> None:
    """That this attempt has caught up with the one before it."""
    _record(tx, attempt, entry, now=now)
    store.update_attempts(tx, {attempt.id: {"recovered_at": now}})


def _record(tx: Connection, attempt: AttemptRecord, entry: Mapping[str, Any], *, now: float) -> None:
    data = storable(dict(entry))
    message = describe_recovery(data)
    store.record_event(
        tx, attempt.run_id, EventKind.RECOVERED, at=now, attempt=attempt.number, message=message, data=data
    )


def describe_recovery(entry: Mapping[str, Any]) -> str:
    """`recovered in place in 0.8 s: rank 1 was killed by SIGKILL; 1 step lost (respawn 0.3 s, load 0.2 s ...)`."""
    times = {name: float(entry[f"{name}_s"]) for name in _TIMES if _is_number(entry.get(f"{name}_s"))}
    lost = entry.get("steps_lost")
    told = [str(entry.get("message") or entry.get("reason") or "a rank failed")]
    if _is_number(lost):
        told.append(f"{lost:,} step{'' if lost == 1 else 's'} lost")
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items())
    if "replay" in times:
        how = f"recovered {_way(entry)} in {sum(times.values()):.2f} s"
    else:  # a program that tells no steps: nobody knows when it is back at work
        how = "started again in place" + (", to no avail" if entry.get("step") is not None else "")
    return f"{how}: {'; '.join(told)}" + (f" ({spent})" if spent else "")


def _way(entry: Mapping[str, Any]) -> str:
    level = entry.get("level", 1)
    nodes = {2: "the same nodes", 3: "other nodes"}.get(level, f"{entry.get('nodes')} nodes")
    return "in place" if level == 1 else f"by attempt {entry.get('attempt')} on {nodes}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
