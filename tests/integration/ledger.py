"""The whole record of a database that has come to rest, and what must hold for it: every state accounted for, never
more on a node than it has, and nobody waiting beside room.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pytest
from sqlalchemy import Row, select

from windlass.core.exits import ExitReason
from windlass.core.resources import Node
from windlass.db.database import Database
from windlass.runs.records import AttemptRecord, RunRecord, attempt_from_row, run_from_row
from windlass.runs.tables import attempts, events, runs
from windlass.runs.types import STATE_AFTER, TRANSITIONS, AttemptState, EventKind, RunState
from windlass.tenancy.prices import PriceBook, Spent, hourly_usd, spent_on

BACKOFF_S = 20.0  # what broke waits no longer than that before it is due again, the first times


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    runs: Mapping[str, RunRecord]
    attempts: Mapping[str, Sequence[AttemptRecord]]  # by run
    events: Mapping[str, Sequence[Row[Any]]]  # by run

    @property
    def all_attempts(self) -> list[AttemptRecord]:
        return [attempt for some in self.attempts.values() for attempt in some]


def load_ledger(db: Database) -> Ledger:
    with db.read() as tx:
        found = {row.id: run_from_row(row) for row in tx.execute(select(runs))}
        tried: dict[str, list[AttemptRecord]] = {run_id: [] for run_id in found}
        for row in tx.execute(select(attempts).order_by(attempts.c.number)):
            tried[row.run_id].append(attempt_from_row(row))
        told: dict[str, list[Row[Any]]] = {run_id: [] for run_id in found}
        for row in tx.execute(select(events).order_by(events.c.seq)):
            told[row.run_id].append(row)
    return Ledger(runs=found, attempts=tried, events=told)


def check_paths(ledger: Ledger) -> None:
    """Each run went from state to state as it may, and is where its events say."""
    for run_id, told in ledger.events.items():
        state: RunState | None = None
        for event in told:
            after = STATE_AFTER.get(EventKind(event.kind))
            if after is None:
                continue
            may = {RunState.QUEUED} if state is None else TRANSITIONS[state]
            assert after in may, f"{run_id}: {event.kind} while it was {state}"
            state = after
        assert ledger.runs[run_id].state is state, f"{run_id} is {ledger.runs[run_id].state}, by its events {state}"


def check_attempts(ledger: Ledger) -> None:
    """Attempts and events tell the same, and every attempt has an end."""
    for run_id, run in ledger.runs.items():
        tried, told = ledger.attempts[run_id], ledger.events[run_id]
        numbers = [attempt.number for attempt in tried]
        assert numbers == list(range(1, run.attempt_count + 1)), run_id
        assert [event.attempt for event in told if event.kind == EventKind.PLACED] == numbers, run_id
        assert [event.attempt for event in told if event.kind == EventKind.ATTEMPT_ENDED] == numbers, run_id
        started = [attempt.number for attempt in tried if attempt.started_at is not None]
        assert [event.attempt for event in told if event.kind == EventKind.STARTED] == started, run_id
        before = 0.0  # a pass that took a run up as it was submitted began a moment earlier
        for attempt in tried:
            assert attempt.state is AttemptState.ENDED, attempt.id
            assert attempt.exit is not None, attempt.id
            assert attempt.ended_at is not None, attempt.id
            assert attempt.released_at is not None, attempt.id
            moments = [before, attempt.created_at, attempt.started_at or attempt.created_at, attempt.ended_at]
            assert moments == sorted(moments), f"{attempt.id}: {moments}"
            before = attempt.ended_at


def check_preemptions(ledger: Ledger) -> None:
    """Who gave way says to whom, and it is counted."""
    for run_id, run in ledger.runs.items():
        stopped = [one for one in ledger.attempts[run_id] if one.exit and one.exit.reason is ExitReason.PREEMPTED]
        assert run.preemptions == len(stopped), run_id
        warned = [event.attempt for event in ledger.events[run_id] if event.kind == EventKind.PREEMPTING]
        assert len(warned) == len(set(warned)), f"{run_id} was warned twice: {warned}"
        assert {one.number for one in stopped} <= set(warned), f"{run_id} was stopped without a warning on record"
        again = {event.attempt: event.message for event in ledger.events[run_id] if event.kind == EventKind.RETRYING}
        for attempt in stopped:
            assert attempt.giving_way is not None, attempt.id
            assert attempt.giving_way.by in ledger.runs, attempt.id
            if attempt.number in again:  # else it was cancelled meanwhile
                assert attempt.giving_way.why in again[attempt.number], attempt.id


def check_costs(ledger: Ledger, prices: PriceBook, found: Sequence[Node]) -> None:
    nodes = {node.name: node for node in found}
    for run_id, run in ledger.runs.items():
        spent = Spent()
        for attempt in ledger.attempts[run_id]:
            if attempt.started_at is not None and attempt.ended_at is not None:
                seconds = attempt.ended_at - attempt.started_at
                hourly = hourly_usd(attempt.placement, run.resources.gpu_type, prices, nodes)
                spent += spent_on(attempt.placement, hourly, seconds)
        noted = (run.cpu_hours, run.gpu_hours, run.cost_usd)
        assert noted == pytest.approx((spent.cpu_hours, spent.gpu_hours, spent.usd), abs=1e-6), run_id


def check_rooms(ledger: Ledger, nodes: Sequence[Node]) -> None:
    """Never more on a node than it has, and no GPU with two holders."""
    changes: dict[str, list[tuple[float, int, Any]]] = defaultdict(list)
    for attempt in ledger.all_attempts:
        for share in attempt.placement.shares:
            assert attempt.ended_at is not None
            changes[share.node].append((attempt.created_at, 1, share))
            changes[share.node].append((attempt.ended_at, -1, share))
    for node in nodes:
        cpus, memory_bytes = 0.0, 0
        held: Counter[int] = Counter()
        # What ends makes room for what begins at the same moment.
        for at, sign, share in sorted(changes[node.name], key=lambda change: change[:2]):
            cpus += sign * share.cpus
            memory_bytes += sign * share.memory_bytes
            for index in share.gpu_indices:
                held[index] += sign
            fits = cpus <= node.cpus + 1e-6 and memory_bytes <= node.memory_bytes
            assert fits, f"{node.name} at {at}: {cpus} CPUs, {memory_bytes} bytes"
            assert all(holders <= 1 for holders in held.values()), f"{node.name} at {at}: GPUs {held}"
            assert all(0 <= index < node.gpus for index in held), f"{node.name}: GPUs {set(held)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWait:
    """A time in which all that waited could have started, and nothing did."""

    since: float
    until: float
    passes: int  # of the scheduler, from beginning to end, within it


def longest_idle_wait(ledger: Ledger, nodes: Sequence[Node], passes: Sequence[tuple[float, float]]) -> IdleWait:
    """Where somebody's turn comes first who finds no room, room is kept for it: such times do not count. All nodes are
    to have the same GPUs, and CPUs and memory enough for whatever has its GPUs."""
    free: Counter[int] = Counter({node.gpus: len(nodes) for node in nodes[:1]})
    of_node = {node.name: node.gpus for node in nodes}
    waiting: Counter[tuple[int, int]] = Counter()  # by GPUs of a node and nodes
    longest = IdleWait(since=0.0, until=0.0, passes=0)
    since: float | None = None
    ordered = sorted(passes)
    for at, placed, shape, change, shares in _turns(ledger):
        waiting[shape] += change
        for node, gpus in shares:
            free[of_node[node]] -= 1
            of_node[node] -= gpus
            free[of_node[node]] += 1
        is_idle = waiting.total() > 0 and all(_has_room(free, one) for one, count in waiting.items() if count)
        if since is not None and (placed or not is_idle):
            within = [one for one in ordered[bisect_left(ordered, (since, since)) :] if since < one[1] <= at]
            if len(within) > longest.passes:
                longest = IdleWait(since=since, until=at, passes=len(within))
            since = None
        if since is None and is_idle:
            since = at
    return longest


def _has_room(free: Mapping[int, int], shape: tuple[int, int]) -> bool:
    gpus, nodes = shape
    return sum(count for left, count in free.items() if left >= gpus) >= nodes


Turn = tuple[float, bool, tuple[int, int], int, Sequence[tuple[str, int]]]


def _turns(ledger: Ledger) -> list[Turn]:
    """When who began to wait or stopped waiting, and took GPUs of nodes or gave them back."""
    found: list[Turn] = []
    for run_id, run in ledger.runs.items():
        shape = (int(run.resources.gpus), run.resources.nodes)
        found += _waits(run, ledger.attempts[run_id], ledger.events[run_id], shape)
        for attempt, then in zip_longest(ledger.attempts[run_id], ledger.attempts[run_id][1:]):
            assert attempt.ended_at is not None
            taken = [(share.node, len(share.gpu_indices)) for share in attempt.placement.shares]
            back = [(node, -gpus) for node, gpus in taken]
            kept_until = attempt.ended_at
            if then is not None and attempt.giving_way is None:  # it broke: its room is kept for a moment
                kept_until = min(then.created_at, attempt.ended_at + BACKOFF_S)
            found.append((attempt.created_at, True, shape, 0, taken))
            found.append((kept_until, False, shape, 0, back))
    # At one moment: first what gives back, then what takes, then who waits.
    return sorted(found, key=lambda turn: (turn[0], turn[1], turn[3]))


def _waits(
    run: RunRecord, tried: Sequence[AttemptRecord], told: Iterable[Row[Any]], shape: tuple[int, int]
) -> list[Turn]:
    found: list[Turn] = []
    since: float | None = None
    for event in told:
        if event.kind == EventKind.SUBMITTED:
            since = event.at
        elif event.kind == EventKind.RETRYING:
            gave_way = tried[event.attempt - 1].giving_way is not None
            since = event.at if gave_way else event.at + BACKOFF_S
        elif event.kind in (EventKind.PLACED, EventKind.CANCELLED) and since is not None:
            until = tried[event.attempt - 1].created_at if event.kind == EventKind.PLACED else event.at
            if until > since:
                found += [(since, False, shape, 1, ()), (until, False, shape, -1, ())]
            since = None
    assert since is None, f"{run.id} waits for ever"
    return found
