"""Why a run waits, in words. Pure; made from the same snapshot and the same fitting rule as the decision itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

from windlass.core.resources import Node
from windlass.scheduling.place import Soundness, free_nodes, in_order
from windlass.scheduling.types import Aside, ClusterSnapshot, NodeKey, WaitingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    summary: str
    details: tuple[str, ...]
    position: int


def explain_waiting(snapshot: ClusterSnapshot, run_id: str) -> Explanation | None:
    """None if the run is not among those waiting."""
    order = in_order(snapshot.waiting)
    position = next((place for place, run in enumerate(order, start=1) if run.run_id == run_id), None)
    if position is None:
        return None
    run = order[position - 1]
    avoided = _avoided(snapshot, run)
    free = [
        node
        for node in free_nodes(snapshot)
        if (run.engines is None or node.node.engine in run.engines) and _key(node.node) not in avoided
    ]
    # A gang stays within one engine: nodes of several do not add up.
    fitting_on = Counter(node.node.engine for node in free if node.fits(run.resources, run.engines))
    fitting = max(fitting_on.values(), default=0)
    details = [
        f"node {node.node.name} lacks {', '.join(shortage)}"
        for node in free
        if (shortage := node.shortage(run.resources))
    ]
    details += [f"node {name} {describe_aside(aside)}" for (_, name), aside in sorted(avoided.items(), key=_first)]
    details += [f"{held_by} holds {_held(snapshot, held_by)}" for held_by in sorted(snapshot.held)]
    details += [
        f"engine {name} cannot be reached: {why}"
        for name, why in sorted(snapshot.away.items())
        if run.engines is None or name in run.engines
    ]
    if not snapshot.nodes:
        summary = "waits for an engine: no nodes are known yet"
    elif fitting < run.resources.nodes:
        summary = f"waits for {run.resources.describe()}: not free now"
        if run.most_nodes is not None:
            details.insert(0, f"it begins with {run.resources.nodes} of them or more, and takes up to {run.most_nodes}")
    elif position > 1:
        summary = f"waits its turn: {_runs(position - 1)} ahead, first {order[0].name} ({order[0].run_id})"
    else:
        summary = "is about to start"
    if position > 1 and fitting < run.resources.nodes:
        summary += f"; {_runs(position - 1)} ahead of it"
    return Explanation(summary=summary, details=tuple(details), position=position)


def _avoided(snapshot: ClusterSnapshot, run: WaitingRun) -> dict[NodeKey, Aside]:
    """The nodes that are not for this run because they are set aside."""
    needs_aside = Soundness.of(snapshot).needs_aside(run)
    return {
        _key(node): aside
        for node in snapshot.nodes
        if (aside := snapshot.aside.get(_key(node))) is not None
        and (aside.by_hand or not needs_aside)
        and (run.engines is None or node.engine in run.engines)
    }


def _key(node: Node) -> NodeKey:
    return node.engine, node.name


def _first(item: tuple[NodeKey, Aside]) -> NodeKey:
    return item[0]


def describe_aside(aside: Aside) -> str:
    """`is set aside until 2026-11-15 14:05 UTC: uncorrectable ECC error`."""
    until = "until somebody gives it back"
    if aside.until is not None:
        until = f"until {datetime.fromtimestamp(aside.until, UTC):%Y-%m-%d %H:%M} UTC"
    return f"is set aside {until}: {aside.reason}"


def _held(snapshot: ClusterSnapshot, run_id: str) -> str:
    shares = snapshot.held[run_id].shares
    cpus = sum(share.cpus for share in shares)
    gpus = sum(len(share.gpu_indices) for share in shares)
    return f"{cpus:g} CPU" + (f" and {gpus} GPU" if gpus else "")


def _runs(count: int) -> str:
    return "1 run is" if count == 1 else f"{count} runs are"
