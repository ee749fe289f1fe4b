"""Why a run waits, in words. Pure; made from the same snapshot and the same fitting rule as the decision itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from windlass.scheduling.place import free_nodes, in_order
from windlass.scheduling.types import ClusterSnapshot


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
    free = free_nodes(snapshot)
    # A gang stays within one engine: nodes of several do not add up.
    fitting_on = Counter(node.node.engine for node in free if node.fits(run.resources, run.engines))
    fitting = max(fitting_on.values(), default=0)
    details = [
        f"node {node.node.name} lacks {', '.join(shortage)}"
        for node in free
        if (run.engines is None or node.node.engine in run.engines) and (shortage := node.shortage(run.resources))
    ]
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
    elif position > 1:
        summary = f"waits its turn: {_runs(position - 1)} ahead, first {order[0].name} ({order[0].run_id})"
    else:
        summary = "is about to start"
    if position > 1 and fitting < run.resources.nodes:
        summary += f"; {_runs(position - 1)} ahead of it"
    return Explanation(summary=summary, details=tuple(details), position=position)


def _held(snapshot: ClusterSnapshot, run_id: str) -> str:
    shares = snapshot.held[run_id].shares
    cpus = sum(share.cpus for share in shares)
    gpus = sum(len(share.gpu_indices) for share in shares)
    return f"{cpus:g} CPU" + (f" and {gpus} GPU" if gpus else "")


def _runs(count: int) -> str:
    return "1 run is" if count == 1 else f"{count} runs are"
