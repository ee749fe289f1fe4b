"""What the scheduler's core decides about, from the database: nodes, what runs, what waits, what projects have used.

Runs that have not changed are not read again: with ten thousand of them, reading all would take most of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select

from windlass.core.resources import Node, Placement
from windlass.runs import store
from windlass.runs.bulk import in_parts
from windlass.runs.living import Living, LivingBook
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
    size,
)
from windlass.scheduling.engines import load_engines
from windlass.scheduling.nodes import load_nodes
from windlass.scheduling.rules import Rules
from windlass.scheduling.types import Aside, NodeKey
from windlass.scheduling.usage import Used, load_usage
from windlass.scheduling.wants import wants_of

PAUSED_S = 60.0  # of a run that broke and comes back within this time, the room is kept
USUAL_RESTART_S, SHORTEST_RESTART_S, LONGEST_RESTART_S = 60.0, 5.0, 3600.0
MOST_REMEMBERED = 20_000  # runs that ended, from which is learned how long runs last


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """The newest attempt of a run that waits again."""

    placement: Placement
    gave_way: bool  # to another run: it waits like others
    keeps: Placement | None  # what an elastic run was to go on with


class SnapshotBook:
    """Not thread-safe: one loop owns it. Losing it costs reading again."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._waiting: dict[str, tuple[int, RunRecord, Waiting]] = {}
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
        paused = [_paused(run, found, now) for run, found in wanted if _is_paused(run, found, now)]
        due = [_with_time_left(found, run, now) for run, found in wanted if (run.retry_at or 0.0) <= now]
        return Snapshot(
            nodes=tuple(_node_state(node, aside) for node in nodes if node.engine not in away),
            running=(*_running(living, gpu_types), *paused),
            waiting=tuple(due),
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
            self._waiting[run.id] = (run.version, run, self._as_waiting(run, before.get(run.id)))
        # One that changed between the two reads is left out: the next pass sees it whole.
        known = (run_id for run_id in versions if run_id in self._waiting)
        self._waiting = {run_id: self._waiting[run_id] for run_id in known if self._waiting[run_id][1].state.is_waiting}

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
            before=(before.keeps or before.placement) if before is not None else None,
            interrupted=before is not None and not before.gave_way,
        )


def load_snapshot(tx: Connection, rules: Rules, *, now: float, learned: Any = None) -> Snapshot:
    """Once, from scratch."""
    return SnapshotBook(rules).load(tx, LivingBook().load(tx, None), now=now, learned=learned)


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


def load_history(tx: Connection) -> History:
    """How long runs have lasted that came to an end by themselves."""
    ended = [RunState.SUCCEEDED, RunState.FAILED]
    columns = [runs.c[name] for name in ("project", "user", "nodes", "cpus", "gpus", "gpu_hours", "cpu_hours")]
    newest = runs.c.submitted_at.desc()
    query = select(*columns).where(runs.c.state.in_(ended)).order_by(newest).limit(MOST_REMEMBERED)
    history = History()
    for row in tx.execute(query):
        gpus = size(Want(gpus=row.gpus, cpus=row.cpus)) * row.nodes
        served = row.gpu_hours if row.gpus else row.cpu_hours / CPUS_PER_GPU
        if gpus > 0 and served > 0:
            seconds = 3600.0 * served / gpus
            history.add(Lasted(gpus=gpus, project=row.project, user=row.user or "", seconds=seconds))
    return history


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
    timeout_s = spec.get("timeout")
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
        ends_at=None if timeout_s is None else (run.started_at or started_at) + timeout_s,
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


def _is_paused(run: RunRecord, waiting: Waiting, now: float) -> bool:
    return waiting.interrupted and run.retry_at is not None and now < run.retry_at <= now + PAUSED_S


def _paused(run: RunRecord, waiting: Waiting, now: float) -> Running:
    """One that broke and is to be tried again in a moment: nobody else is to take its place meanwhile."""
    assert waiting.before is not None
    return Running(
        run_id=run.id,
        project=run.project,
        user=waiting.user,
        priority=run.priority,
        want=waiting.wants[0],
        placement=waiting.before,
        submitted_at=run.submitted_at,
        started_at=now,
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
        gpu_type=gpu_types.get((attempt.engine, first.node)) if first.gpu_indices else None,
        cpus=first.cpus,
        memory_bytes=first.memory_bytes,
        nodes=elastic["min_nodes"] if elastic else len(shares),
        most_nodes=elastic["max_nodes"] if elastic else None,
        engines=frozenset((attempt.engine,)),
    )


def _with_time_left(waiting: Waiting, run: RunRecord, now: float) -> Waiting:
    """The limit is the run's, so a later attempt gets what the earlier ones left."""
    timeout_s = run.spec_data.get("timeout")
    if timeout_s is None:
        return waiting
    passed = now - run.started_at if run.started_at is not None else 0.0
    return replace(waiting, longest_s=max(1.0, timeout_s - passed))


def _load_before(tx: Connection, run_ids: Sequence[str]) -> dict[str, _Before]:
    found: dict[str, _Before] = {}
    for some in in_parts(run_ids):
        columns = (attempts.c.run_id, attempts.c.placement, attempts.c.giving_way)
        rows = tx.execute(select(*columns).where(attempts.c.run_id.in_(some)).order_by(attempts.c.number))
        for row in rows:
            keeps = (row.giving_way or {}).get("keeps")
            found[row.run_id] = _Before(
                placement=placement_from_json(row.placement),
                gave_way=row.giving_way is not None and keeps is None,
                keeps=placement_from_json(keeps) if keeps is not None else None,
            )
    return found
