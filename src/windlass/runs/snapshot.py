"""What the scheduler's core decides about, from the database: nodes, what runs, what waits, what projects have used.

Runs that have not changed are not read again: with ten thousand of them, reading all would take most of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, and_, or_, select

from windlass.core.resources import Node, Placement
from windlass.runs import store
from windlass.runs.bulk import in_parts
from windlass.runs.living import Living
from windlass.runs.records import AttemptRecord, RunRecord, placement_from_json
from windlass.runs.tables import attempts, runs
from windlass.runs.types import AttemptState, RunState
from windlass.scheduling.aside import load_aside
from windlass.scheduling.core.learned import History, Lasted
from windlass.scheduling.core.types import (
    CPUS_PER_GPU,
    Health,
    NodeState,
    Project,
    Reservation,
    Running,
    Snapshot,
    Waiting,
    Want,
)
from windlass.scheduling.engines import load_engines
from windlass.scheduling.nodes import load_nodes
from windlass.scheduling.rules import Rules
from windlass.scheduling.types import Aside, NodeKey
from windlass.scheduling.usage import Holding, Used, load_usage
from windlass.scheduling.wants import wants_of

PAUSED_S = 60.0  # of a run that broke and comes back within this time, the room is kept
USUAL_RESTART_S, SHORTEST_RESTART_S, LONGEST_RESTART_S = 60.0, 5.0, 3600.0
MOST_REMEMBERED = 10_000  # runs that ended well, and as many that failed, from which is learned how long runs last
SHORTEST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """The newest attempt of a run that waits again."""

    placement: Placement
    ended_at: float
    gave_way: bool  # to another run: it waits like others
    keeps: Placement | None  # what an elastic run was to go on with


class SnapshotBook:
    """Not thread-safe: one loop owns it. Losing it costs reading again."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._waiting: dict[str, tuple[int, RunRecord, Waiting]] = {}
        self._paused: dict[str, Running] = {}  # of those that come back in a moment, what is kept for them
        self._types: Mapping[str, str] = {}

    def load(
        self, tx: Connection, living: Living, *, now: float, learned: Any = None, reserved: Sequence[Reservation] = ()
    ) -> Snapshot:
        """`living`: of all controllers. `reserved`: what the last pass kept."""
        engines = load_engines(tx)
        types = {name: state.type for name, state in engines.items()}
        away = {name for name, state in engines.items() if state.unreachable_since is not None}
        if types != self._types:
            self._waiting, self._types = {}, types  # which of them a run may go to depends on what they are
        nodes, aside = load_nodes(tx), load_aside(tx, now=now)
        gpu_types = {(node.engine, node.name): node.gpu_type for node in nodes}
        usage = load_usage(tx)
        self._refresh(tx)
        wanted = [(run, found) for _, run, found in self._waiting.values() if run.cancel_requested_at is None]
        paused = [self._paused[run.id] for run, _ in wanted if run.id in self._paused and (run.retry_at or 0.0) > now]
        return Snapshot(
            nodes=tuple(_node_state(node, aside) for node in nodes if node.engine not in away),
            away=tuple(_node_state(node, aside) for node in nodes if node.engine in away),
            running=(*_running(living, gpu_types), *paused),
            waiting=tuple(found for run, found in wanted if (run.retry_at or 0.0) <= now),
            projects=tuple(projects_of(self._rules, usage)),
            learned=learned,
            reserved=tuple(reserved),
        )

    def _refresh(self, tx: Connection) -> None:
        query = select(runs.c.id, runs.c.version).where(runs.c.state.in_(list(store.WAITING)))
        versions = {row.id: row.version for row in tx.execute(query.order_by(runs.c.queued_at, runs.c.id))}
        changed = [run_id for run_id, version in versions.items() if self._version(run_id) != version]
        fresh = store.load_runs(tx, changed)
        before = _load_before(tx, [run.id for run in fresh if run.state is RunState.RECOVERING])
        for run in fresh:
            found = self._as_waiting(run, before.get(run.id))
            self._waiting[run.id] = (run.version, run, found)
            if run.id in before and _is_short_pause(run, before[run.id]):
                self._paused[run.id] = _as_paused(run, found, before[run.id])
        # One that changed between the two reads is left out: the next pass sees it whole.
        known = (run_id for run_id in versions if run_id in self._waiting)
        self._waiting = {run_id: self._waiting[run_id] for run_id in known if self._waiting[run_id][1].state.is_waiting}
        self._paused = {run_id: found for run_id, found in self._paused.items() if run_id in self._waiting}

    def _version(self, run_id: str) -> int | None:
        known = self._waiting.get(run_id)
        return known[0] if known is not None else None

    def _as_waiting(self, run: RunRecord, before: _Before | None) -> Waiting:
        spec = run.spec_data
        engines = self._rules.access.of_run(
            run.project,
            spec.get("engine") or (),
            image=spec.get("image"),
            gpus=run.resources.gpus,
            types=self._types,
        )
        elastic = spec.get("elastic")
        most = elastic["max_nodes"] if elastic else None
        # An elastic run that has begun goes on with fewer nodes than it began with.
        least = replace(run.resources, nodes=elastic["min_nodes"]) if elastic and run.attempt_count else run.resources
        wants = wants_of(least, engines=engines, most_nodes=most)
        if before is not None and before.keeps is not None and (kept := len(before.keeps.shares)) > least.nodes:
            wants = (*wants_of(replace(least, nodes=kept), engines=engines, most_nodes=most), *wants)
        return Waiting(
            run_id=run.id,
            project=run.project,
            user=run.user or "",
            priority=run.priority,
            wants=wants,
            submitted_at=run.submitted_at,
            queued_at=run.waits_since,
            served=served_gpu_s(run),
            preemptions=run.preemptions,
            deadline=spec.get("deadline"),
            longest_s=time_left_s(spec.get("timeout"), run.ran_s),
            before=(before.keeps or before.placement) if before is not None else None,
            interrupted=before is not None and not before.gave_way,
        )


def projects_of(rules: Rules, usage: Mapping[str, Used]) -> list[Project]:
    """Those that are named in the config, and those that have used something."""
    named = dict(rules.projects)
    for name in usage:
        named.setdefault(name, Project(name=name))
    return [
        replace(project, usage=usage[name].usage, usage_at=usage[name].at) if name in usage else project
        for name, project in sorted(named.items())
    ]


def served_gpu_s(run: RunRecord) -> float:
    """What its ended attempts have used, as `Waiting.served` counts it."""
    return 3600.0 * (run.gpu_hours if run.resources.gpus else run.cpu_hours / CPUS_PER_GPU)


def time_left_s(timeout_s: float | None, ran_s: float) -> float | None:
    """Of the limit, which is the run's: a later attempt gets what the earlier ones left. Waiting does not count."""
    return None if timeout_s is None else max(SHORTEST_S, timeout_s - ran_s)


def load_history(tx: Connection) -> History:
    """How long runs have lasted that came to an end by themselves."""
    history = History()
    columns = [runs.c[name] for name in ("project", "user", "gpu_hours", "cpu_hours", "ran_s")]
    for state in (RunState.SUCCEEDED, RunState.FAILED):  # each by itself: then an index has them in this order
        newest = select(*columns).where(runs.c.state == state).order_by(runs.c.submitted_at.desc())
        for row in tx.execute(newest.limit(MOST_REMEMBERED)):
            served = 3600.0 * (row.gpu_hours or row.cpu_hours / CPUS_PER_GPU)
            if row.ran_s > 0 and served > 0:
                gpus = served / row.ran_s  # that it had on average
                history.add(Lasted(gpus=gpus, project=row.project, user=row.user or "", seconds=row.ran_s))
    return history


def load_ended_holdings(tx: Connection, *, since: float) -> list[Holding]:
    """Of attempts that ended after then. They are released later than that, which an index tells."""
    c = attempts.c
    columns = (c.placement, c.started_at, c.ended_at, runs.c.project)
    recent = and_(or_(c.released_at.is_(None), c.released_at > since), c.ended_at > since, c.started_at.is_not(None))
    rows = tx.execute(select(*columns).select_from(attempts.join(runs, c.run_id == runs.c.id)).where(recent))
    return [
        Holding(
            project=row.project,
            placement=placement_from_json(row.placement),
            started_at=row.started_at,
            ended_at=row.ended_at,
        )
        for row in rows
    ]


def _node_state(node: Node, aside: Mapping[NodeKey, Aside]) -> NodeState:
    trouble = aside.get((node.engine, node.name))
    health = Health.SOUND if trouble is None else Health.CLOSED if trouble.by_hand else Health.DOUBTED
    return NodeState(
        engine=node.engine,
        name=node.name,
        cpus=node.cpus,
        memory_bytes=node.memory_bytes,
        gpus=node.gpus,
        gpu_type=node.gpu_type,
        labels=node.labels,
        topology=node.topology,
        price_per_hour=node.price_per_hour,
        spot=node.spot,
        health=health,
    )


def _running(living: Living, gpu_types: Mapping[NodeKey, str | None]) -> list[Running]:
    return [
        _as_running(run, attempt, gpu_types)
        for attempt in living.attempts
        if (run := living.runs.get(attempt.run_id)) is not None
    ]


def _as_running(run: RunRecord, attempt: AttemptRecord, gpu_types: Mapping[NodeKey, str | None]) -> Running:
    started_at = attempt.started_at or attempt.created_at
    giving_way, spec = attempt.giving_way, run.spec_data
    keeps = None
    if giving_way is not None and giving_way.keeps is not None:
        keeps = placement_from_json(giving_way.keeps)
    left_s = time_left_s(spec.get("timeout"), run.ran_s)
    return Running(
        run_id=run.id,
        project=run.project,
        user=run.user or "",
        priority=run.priority,
        want=_got(run, attempt, gpu_types),
        placement=attempt.placement,
        submitted_at=run.submitted_at,
        queued_at=attempt.queued_at,
        started_at=started_at,
        served=served_gpu_s(run),
        saved_at=attempt.saved_at,
        saves_on_notice=attempt.heeds_notice,
        restart_s=_restart_s(attempt),
        preemptible=bool(spec.get("preemptible", True)) and attempt.state is AttemptState.RUNNING,
        preemptions=run.preemptions,
        stopping=giving_way is not None or run.cancelling,
        keeps=keeps,
        ends_at=None if left_s is None else started_at + left_s,
        grow_every_s=_grow_every_s(run, attempt),
    )


def _restart_s(attempt: AttemptRecord) -> float:
    """What coming back took it the last time, if it had to."""
    if attempt.recovered_at is None:
        return USUAL_RESTART_S
    return min(max(attempt.recovered_at - attempt.created_at, SHORTEST_RESTART_S), LONGEST_RESTART_S)


def _grow_every_s(run: RunRecord, attempt: AttemptRecord) -> float | None:
    """What was never saved would be lost, whether or not the program heeds a warning."""
    elastic = run.spec_data.get("elastic")
    if not elastic:
        return None
    every: float | None = elastic.get("grow_every")
    return math.inf if every is None or attempt.saved_at is None else every


def _is_short_pause(run: RunRecord, before: _Before) -> bool:
    return not before.gave_way and run.retry_at is not None and run.retry_at - before.ended_at <= PAUSED_S


def _as_paused(run: RunRecord, waiting: Waiting, before: _Before) -> Running:
    """One that broke and is to be tried again in a moment: nobody else is to take its place meanwhile."""
    first = before.placement.shares[0]
    held = replace(
        waiting.wants[0],
        gpus=len(first.gpu_indices) * first.gpu_part,
        cpus=first.cpus,
        memory_bytes=first.memory_bytes,
        nodes=len(before.placement.shares),
        most_nodes=None,
    )
    return Running(
        run_id=run.id,
        project=run.project,
        user=waiting.user,
        priority=run.priority,
        want=held,
        placement=before.placement,
        submitted_at=run.submitted_at,
        started_at=before.ended_at,
        served=waiting.served,
        preemptible=False,
        preemptions=run.preemptions,
    )


def _got(run: RunRecord, attempt: AttemptRecord, gpu_types: Mapping[NodeKey, str | None]) -> Want:
    """The alternative that it was given, as its placement tells."""
    shares, elastic = attempt.placement.shares, run.spec_data.get("elastic")
    first = shares[0]
    return Want(
        gpus=len(first.gpu_indices) * first.gpu_part,
        # A node that is gone does not tell any more; whether they are TPUs, the run does.
        gpu_type=gpu_types.get((attempt.engine, first.node), run.resources.gpu_type) if first.gpu_indices else None,
        cpus=first.cpus,
        memory_bytes=first.memory_bytes,
        nodes=elastic["min_nodes"] if elastic else len(shares),
        most_nodes=elastic["max_nodes"] if elastic else None,
        engines=frozenset((attempt.engine,)),
    )


def _load_before(tx: Connection, run_ids: Sequence[str]) -> dict[str, _Before]:
    found: dict[str, _Before] = {}
    for some in in_parts(run_ids):
        columns = (attempts.c.run_id, attempts.c.placement, attempts.c.ended_at, attempts.c.giving_way)
        rows = tx.execute(select(*columns).where(attempts.c.run_id.in_(some)).order_by(attempts.c.number))
        for row in rows:
            keeps = (row.giving_way or {}).get("keeps")
            found[row.run_id] = _Before(
                placement=placement_from_json(row.placement),
                ended_at=row.ended_at or 0.0,
                gave_way=row.giving_way is not None and keeps is None,
                keeps=placement_from_json(keeps) if keeps is not None else None,
            )
    return found
