"""The scheduler at work: loads what there is, lets the core decide, says what is to be written. Only the controller
that schedules has one at work; what it remembers is no more than a convenience.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from windlass.controller.lease import ShardLeases
from windlass.core.clock import is_due
from windlass.db.database import Database
from windlass.runs import store
from windlass.runs.living import Living, LivingBook
from windlass.runs.records import AttemptRecord, GivingWay, placement_to_json
from windlass.runs.snapshot import SnapshotBook, load_ended_holdings, load_history
from windlass.scheduling.core import index
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.learned import Learned
from windlass.scheduling.core.types import (
    Cause,
    Decisions,
    Reservation,
    Resize,
    Running,
    Snapshot,
    Start,
    Stop,
    Waiting,
)
from windlass.scheduling.rules import Rules
from windlass.scheduling.usage import Holding, commit_usage, decide_usage, load_usage

LOOK_EVERY_S = 2.0  # while nobody waits: elastic runs may have more room, and what projects use is counted
LEARN_EVERY_S = 600.0
USAGE_EVERY_S = 30.0
SETTLED_S = 30.0  # more room must have been there for so long: what comes and goes is not worth a restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be written."""

    starts: Sequence[Start] = ()
    giving_way: Mapping[str, GivingWay] = field(default_factory=dict)  # by run


class Scheduler:
    """Not thread-safe: one controller loop owns it."""

    def __init__(self, db: Database, lease: ShardLeases, rules: Rules) -> None:
        self._db = db
        self._lease = lease
        self._rules = rules
        self._book = SnapshotBook(rules)
        self._all = LivingBook()
        self._learned: Learned | None = None
        self._ended = 0  # runs that it was learned from
        self._look_at = 0.0
        self._learn_at = 0.0
        self._usage_at = 0.0
        self._reserved: Sequence[Reservation] = ()  # by the last pass
        self._grows_since: Mapping[tuple[str, float], float] = {}  # by run and its start, since there is room for more

    def decide(self, now: float, living: LivingBook | None = None) -> Verdict:
        """`living`: of all runs, where the caller has one."""
        with self._db.read() as tx:
            is_waiting = bool(store.count_by_state(tx, store.WAITING))
            if not is_waiting and not is_due(self._look_at, now, every_s=LOOK_EVERY_S):
                return Verdict()
            self._look_at = now + LOOK_EVERY_S
            there = (living or self._all).load(tx, None)
            has_work = is_waiting or any(_is_narrow(attempt, there) for attempt in there.attempts)
            if not has_work and not is_due(self._usage_at, now, every_s=USAGE_EVERY_S):
                return Verdict()
            snapshot = self._load(tx, there, now)
        self._account(snapshot, now)
        if not has_work:
            return Verdict()
        decisions = decide(snapshot, self._rules.policy_after(self._ended), now)
        self._reserved = decisions.reservations
        self._grows_since = decide_growth(snapshot, decisions, self._grows_since, now)
        found = decide_giving_way(snapshot, decisions, self._grows_since, now)
        return Verdict(starts=decisions.starts, giving_way=found)

    def _load(self, tx: Connection, living: Living, now: float) -> Snapshot:
        snapshot = self._book.load(tx, living, now=now, learned=self._learned, reserved=self._reserved)
        if is_due(self._learn_at, now, every_s=LEARN_EVERY_S) and self._rules.policy.rank is index.rank:
            going = [index.lasted(run, now) for run in snapshot.running]
            going += [index.lasted(run, now) for run in snapshot.waiting if run.served]
            history = load_history(tx)
            self._learned, self._ended = history.learn(going), history.count
            self._learn_at = now + LEARN_EVERY_S
        return snapshot

    def _account(self, snapshot: Snapshot, now: float) -> None:
        """What projects use counts, also while nobody waits."""
        if not is_due(self._usage_at, now, every_s=USAGE_EVERY_S):
            return
        self._usage_at = now + USAGE_EVERY_S
        living = [
            Holding(project=run.project, placement=run.placement, started_at=run.started_at) for run in snapshot.running
        ]
        with self._db.read() as tx:
            known = load_usage(tx)
            ended = load_ended_holdings(tx, since=min((used.at for used in known.values()), default=now))
        nodes = (*snapshot.nodes, *snapshot.away)
        half_life_s = self._rules.policy.half_life_s
        found = decide_usage(known, nodes, [*living, *ended], half_life_s=half_life_s, now=now)
        if found:
            with self._db.write() as tx:
                self._lease.beat(tx)
                commit_usage(tx, found)


def _is_narrow(attempt: AttemptRecord, living: Living) -> bool:
    run = living.runs.get(attempt.run_id)
    elastic = (run.spec_data.get("elastic") if run is not None else None) or {}
    return len(attempt.placement.shares) < int(elastic.get("max_nodes", 0))


def decide_growth(
    snapshot: Snapshot, decisions: Decisions, since: Mapping[tuple[str, float], float], now: float
) -> dict[tuple[str, float], float]:
    """Since when each could have more nodes."""
    growing = {resize.run_id for resize in decisions.resizes if resize.by is None}
    keys = [(run.run_id, run.started_at) for run in snapshot.running if run.run_id in growing]
    return {key: since.get(key, now) for key in keys}


def decide_giving_way(
    snapshot: Snapshot, decisions: Decisions, grows_since: Mapping[tuple[str, float], float], now: float
) -> dict[str, GivingWay]:
    """Who is warned, by run."""
    found: dict[str, GivingWay] = {}
    if not decisions.stops and not decisions.resizes:
        return found
    running = {run.run_id: run for run in snapshot.running}
    waiting = {run.run_id: run for run in snapshot.waiting}
    for stop in decisions.stops:
        why = _why_stopped(stop, running[stop.run_id], waiting.get(stop.by))
        found[stop.run_id] = GivingWay(why=why, at=now, cause=stop.cause, by=stop.by, lost_gpu_s=stop.lost)
    for resize in decisions.resizes:
        run = running[resize.run_id]
        settled_s = SETTLED_S if run.grow_every_s is None else min(SETTLED_S, run.grow_every_s)
        if resize.by is not None or now - grows_since[run.run_id, run.started_at] >= settled_s:
            found[resize.run_id] = _resized(resize, run, now)
    return found


def _resized(resize: Resize, run: Running, now: float) -> GivingWay:
    before, count = len(run.placement.shares), len(resize.placement.shares)
    why = f"it grows from {before} to {count} nodes"
    if resize.by is not None:
        why = f"it goes on with {count} node{'s' if count != 1 else ''}: run {resize.by} needs the others"
    return GivingWay(why=why, at=now, cause=Cause.ROOM, by=resize.by, keeps=placement_to_json(resize.placement))


def _why_stopped(stop: Stop, run: Running, claimant: Waiting | None) -> str:
    of = f" of project {claimant.project}" if claimant is not None and claimant.project != run.project else ""
    reason = {
        Cause.PRIORITY: "which has a higher priority",
        Cause.RECLAIM: "whose quota was lent to it",
        Cause.SHARE: "whose project has less than its share",
        Cause.ORDER: "which is likely to end much sooner",
        Cause.ROOM: "which needs it",
    }[stop.cause]
    return f"it makes room for run {stop.by}{of}, {reason}"
