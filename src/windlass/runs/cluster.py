"""The nodes there are and what runs hold of them, as the API shows them; setting one aside and giving it back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Connection, select

from windlass.core.errors import Conflict
from windlass.core.resources import Node
from windlass.runs import store
from windlass.runs.tables import runs
from windlass.scheduling.aside import commit_aside, commit_back, find_node, load_aside, load_last_aside
from windlass.scheduling.engines import load_engines
from windlass.scheduling.nodes import load_nodes, load_seen_at
from windlass.scheduling.types import Aside, NodeKey
from windlass.wire.cluster import AsideRequest, AsideView, ClusterView, EngineView, NodeRef, NodeRun, NodeView


def view_cluster(tx: Connection, *, now: float) -> ClusterView:
    nodes = load_nodes(tx)
    counts = store.count_by_state(tx, [*store.LIVE, *store.WAITING])
    holders, seen_at = _load_holders(tx), load_seen_at(tx)
    keys = [(node.engine, node.name) for node in nodes]
    sizes = Counter(node.engine for node in nodes)
    asides = sorted(load_aside(tx, now=now).items(), key=lambda item: item[0])
    return ClusterView(
        nodes=[
            _node_view(node, holders.get(key, []), seen_at.get(key, 0.0)) for node, key in zip(nodes, keys, strict=True)
        ],
        set_aside=[view_aside(node, aside) for node, aside in asides],
        engines=[
            EngineView(
                name=name,
                type=state.type,
                nodes=sizes[name],
                unreachable_since=state.unreachable_since,
                message=state.message,
                seen_at=state.seen_at,
            )
            for name, state in load_engines(tx).items()
        ],
        queued=sum(counts.get(state, 0) for state in store.WAITING),
        running=sum(counts.get(state, 0) for state in store.LIVE),
    )


def _node_view(node: Node, held: Sequence[NodeRun], seen_at: float) -> NodeView:
    return NodeView(
        engine=node.engine,
        name=node.name,
        cpus=node.cpus,
        cpus_used=round(sum(run.cpus for run in held), 6),
        memory_bytes=node.memory_bytes,
        memory_used_bytes=sum(run.memory_bytes for run in held),
        gpus=node.gpus,
        gpus_used=len({gpu for run in held for gpu in run.gpus}),
        gpu_type=node.gpu_type,
        topology=list(node.topology),
        labels=sorted(node.labels),
        price_per_hour=node.price_per_hour,
        spot=node.spot,
        runs=list(held),
        seen_at=seen_at,
    )


def _load_holders(tx: Connection) -> dict[NodeKey, list[NodeRun]]:
    """By engine and node."""
    query = select(runs.c.id, runs.c.name, runs.c.project).where(runs.c.state.in_(list(store.LIVE)))
    titles = {row.id: (row.name, row.project) for row in tx.execute(query)}
    found: dict[NodeKey, list[NodeRun]] = {}
    for run_id, placement in sorted(store.load_held(tx).items()):
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


def set_aside(tx: Connection, request: AsideRequest, *, now: float) -> AsideView:
    """Place nothing there any more, whatever was before."""
    until = None if request.for_s is None else now + request.for_s
    aside = Aside(reason=request.reason or "by hand", since=now, until=until, by_hand=True)
    node = find_node(tx, request.node, request.engine)
    commit_aside(tx, node, aside)
    return view_aside(node, aside)


def give_back(tx: Connection, request: NodeRef, *, now: float) -> AsideView:
    """What it was set aside for. Raises Conflict if it is not."""
    node = find_node(tx, request.node, request.engine)
    aside = load_last_aside(tx, node)
    if aside is None or not aside.holds(now):
        raise Conflict(f"node {node[1]} of engine {node[0]} is not set aside", hint="there is nothing to do")
    commit_back(tx, node)
    return view_aside(node, aside)
