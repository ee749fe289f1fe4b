"""Runs as the scheduler sees them, and what that says about a run that waits or a node that is busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, select

from windlass.core.quantities import format_duration
from windlass.core.resources import Placement, Resources
from windlass.runs import store
from windlass.runs.bulk import in_parts
from windlass.runs.records import AttemptRecord, RunRecord, placement_from_json
from windlass.runs.tables import attempts, runs
from windlass.runs.types import STATE_AFTER, RunState
from windlass.scheduling.access import EngineAccess
from windlass.scheduling.aside import load_aside
from windlass.scheduling.engines import load_engines
from windlass.scheduling.explain import explain_waiting
from windlass.scheduling.nodes import load_nodes, load_seen_at
from windlass.scheduling.place import free_nodes
from windlass.scheduling.types import Aside, ClusterSnapshot, NodeKey, WaitingRun
from windlass.wire.cluster import AsideView, ClusterView, EngineView, NodeRun, NodeView
from windlass.wire.runs import Why


def load_cluster_snapshot(tx: Connection, access: EngineAccess, *, now: float) -> ClusterSnapshot:
    engines = load_engines(tx)
    types = {name: state.type for name, state in engines.items()}
    away = {name: state.message for name, state in engines.items() if state.unreachable_since is not None}
    runs = store.load_runs_in(tx, store.WAITING)
    before = _last_placements(tx, [run.id for run in runs if run.state is RunState.RECOVERING])
    return ClusterSnapshot(
        nodes=tuple(node for node in load_nodes(tx) if node.engine not in away),
        away=away,
        aside=load_aside(tx, now=now),
        held=store.load_held(tx),
        waiting=tuple(
            WaitingRun(
                run_id=run.id,
                name=run.name,
                resources=_least(run),
                most_nodes=(run.spec_data.get("elastic") or {}).get("max_nodes"),
                priority=run.priority,
                queued_at=run.queued_at,
                engines=access.of_run(
                    run.project, run.spec_data.get("engine") or (), image=run.spec_data.get("image"), types=types
                ),
                before=before.get(run.id),
            )
            for run in runs
            if (run.retry_at or 0.0) <= now and run.cancel_requested_at is None
        ),
    )


def _least(run: RunRecord) -> Resources:
    """An elastic run that has begun goes on with fewer nodes than it began with."""
    elastic = run.spec_data.get("elastic")
    return replace(run.resources, nodes=elastic["min_nodes"]) if elastic and run.attempt_count else run.resources


def _last_placements(tx: Connection, run_ids: Sequence[str]) -> dict[str, Placement]:
    """Where the newest attempt of each run was."""
    found: dict[str, Placement] = {}
    for some in in_parts(run_ids):
        query = select(attempts.c.run_id, attempts.c.placement).where(attempts.c.run_id.in_(some))
        rows = tx.execute(query.order_by(attempts.c.number))
        found |= {row.run_id: placement_from_json(row.placement) for row in rows}
    return found


def explain_run(tx: Connection, run: RunRecord, access: EngineAccess, *, now: float) -> Why:
    tried = store.load_attempts(tx, run.id)
    if run.state is RunState.RECOVERING and run.retry_at is not None and run.retry_at > now:
        summary = f"waits {format_duration(run.retry_at - now)} before attempt {run.attempt_count + 1}"
        return _why(run, summary, _history(tried))
    if run.state.is_waiting:
        found = explain_waiting(load_cluster_snapshot(tx, access, now=now), run.id)
        if found is not None:
            return _why(run, found.summary, [*found.details, *_history(tried)], position=found.position)
        return _why(run, "is being cancelled", _history(tried))
    if run.state.is_live:
        held = ", ".join(share.node for share in tried[-1].placement.shares) if tried else "no node"
        since = run.started_at or run.queued_at
        verb = "is being cancelled" if run.cancelling else f"is {run.state}"
        if tried and (since_when := tried[-1].unknown_since) is not None:
            verb = f"was {run.state} when its engine was last in touch, {format_duration(now - since_when)} ago"
        summary = f"{verb}: attempt {run.attempt_count} on {held}, {format_duration(now - since)} so far"
        said = [f"{tried[-1].engine} says: {tried[-1].detail}"] if tried and tried[-1].detail else []
        said += _growing(run, tried[-1]) if tried else []
        return _why(run, summary, [*said, *_history(tried)])
    moves = [event for event in store.load_events(tx, run.id) if event.kind in STATE_AFTER]
    traceback = run.exit.traceback.splitlines() if run.exit is not None and run.exit.traceback else []
    return _why(run, f"{run.state}: {moves[-1].message}" if moves else str(run.state), [*traceback, *_history(tried)])


def _growing(run: RunRecord, attempt: AttemptRecord) -> list[str]:
    """What an elastic run with fewer nodes than it could have waits for."""
    elastic = run.spec.elastic
    count = len(attempt.placement.shares)
    if elastic is None or count >= elastic.max_nodes:
        return []
    if elastic.grow_every is None:
        return [f"it is on {count} of up to {elastic.max_nodes} nodes, and takes more when it is started again"]
    return [
        f"it is on {count} of up to {elastic.max_nodes} nodes; it grows when more have been free for a while, no run "
        f"waits for them and it has a checkpoint, {format_duration(elastic.grow_every)} after its start at the earliest"
    ]


def view_aside(node: NodeKey, aside: Aside) -> AsideView:
    return AsideView(
        engine=node[0],
        node=node[1],
        reason=aside.reason,
        since=aside.since,
        until=aside.until,
        times=aside.times,
        by_hand=aside.by_hand,
        run_id=aside.run_id,
    )


def view_cluster(tx: Connection, *, now: float) -> ClusterView:
    known = load_engines(tx)
    snapshot = ClusterSnapshot(nodes=load_nodes(tx), held=store.load_held(tx), waiting=())
    counts = store.count_by_state(tx, [*store.LIVE, *store.WAITING])
    holders = _holders(snapshot, _load_titles(tx))
    seen_at = load_seen_at(tx)
    views = []
    for free in free_nodes(snapshot):
        node = free.node
        views.append(
            NodeView(
                engine=node.engine,
                name=node.name,
                cpus=node.cpus,
                cpus_used=node.cpus - free.cpus,
                memory_bytes=node.memory_bytes,
                memory_used_bytes=node.memory_bytes - free.memory_bytes,
                gpus=node.gpus,
                gpus_used=node.gpus - len(free.gpu_indices),
                gpu_type=node.gpu_type,
                runs=holders.get((node.engine, node.name), []),
                seen_at=seen_at.get((node.engine, node.name), 0.0),
            )
        )
    sizes = Counter(view.engine for view in views)
    return ClusterView(
        nodes=views,
        set_aside=[view_aside(node, aside) for node, aside in sorted(load_aside(tx, now=now).items(), key=_by_node)],
        engines=[
            EngineView(
                name=name,
                type=state.type,
                nodes=sizes[name],
                unreachable_since=state.unreachable_since,
                message=state.message,
                seen_at=state.seen_at,
            )
            for name, state in known.items()
        ],
        queued=sum(counts.get(state, 0) for state in store.WAITING),
        running=sum(counts.get(state, 0) for state in store.LIVE),
    )


def _by_node(item: tuple[NodeKey, Aside]) -> NodeKey:
    return item[0]


def _load_titles(tx: Connection) -> dict[str, tuple[str, str]]:
    """Name and project of those that hold something."""
    columns = (runs.c.id, runs.c.name, runs.c.project)
    rows = tx.execute(select(*columns).where(runs.c.state.in_(list(store.LIVE))))
    return {row.id: (row.name, row.project) for row in rows}


def _holders(snapshot: ClusterSnapshot, titles: Mapping[str, tuple[str, str]]) -> dict[tuple[str, str], list[NodeRun]]:
    """By engine and node."""
    found: dict[tuple[str, str], list[NodeRun]] = {}
    for run_id, placement in sorted(snapshot.held.items()):
        name, project = titles.get(run_id, (run_id, ""))
        for share in placement.shares:
            holder = NodeRun(
                id=run_id,
                name=name,
                project=project,
                cpus=share.cpus,
                gpus=list(share.gpu_indices),
                gpu_part=share.gpu_part,
                memory_bytes=share.memory_bytes,
            )
            found.setdefault((placement.engine, share.node), []).append(holder)
    return found


def _history(attempts: list[AttemptRecord]) -> list[str]:
    return [
        f"attempt {attempt.number} ended: {attempt.exit.reason}"
        + (f": {attempt.exit.message}" if attempt.exit.message else "")
        for attempt in attempts
        if attempt.exit is not None
    ]


def _why(run: RunRecord, summary: str, details: list[str], *, position: int | None = None) -> Why:
    return Why(run_id=run.id, state=run.state, summary=summary, details=details, position=position)
