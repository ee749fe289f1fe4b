"""What Ray's tables say of the nodes of one attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.agent.remedy import NODE
from windlass.core.exits import ExitReason
from windlass.engines.contract import NodeReport, Notice
from windlass.engines.ray.requests import actor_name
from windlass.engines.ray.tables import RayActor, RayNode, Tables, node_names
from windlass.engines.remote.observing import Life, NodeLife
from windlass.engines.remote.silence import patience_s

# A relay that reported since is alive, whatever Ray says of its actor: Ray may have lost its memory or its way to the
# node. The relays of dead raylets end by themselves. It may be longer: see `patience_s`.
SILENT_S = 4.0
RETURN_S = 3.0  # with the silence that follows, more than the longest pause of a relay that looks for its server
# Ray's kinds of death that say more than that the node is lost.
_REASONS = {
    "runtime_env_failed": ExitReason.LAUNCH_FAILED,
    "creation_task_failure": ExitReason.LAUNCH_FAILED,
    "oom": ExitReason.OOM,
    "autoscaler_drain_preempted": ExitReason.PREEMPTED,
}
_UNKNOWN = NodeLife(life=Life.UNKNOWN, message="Ray cannot be asked now")


def decide_lives(
    reports: Sequence[NodeReport],
    tables: Tables | None,
    *,
    group: str,
    asked: bool,
    listening_since: float,
    now: float,
) -> list[NodeLife] | None:
    """One per node rank; None: Ray has not got (all of) it, and no node ever reported, so it is to be launched.

    Silence counts from `listening_since`: a relay comes back to a server that was away within seconds, not at once.
    `tables` is None when Ray does not answer; it tells nothing of dead actors of groups that it was not asked for.
    `asked`: the launch is on its way to Ray.
    """
    if tables is None:
        return [_UNKNOWN for _ in reports]
    actors = [tables.actors.get(actor_name(group, report.node_rank)) for report in reports]
    if group not in tables.followed and any(actor is None for actor in actors):
        return [_UNKNOWN for _ in reports]  # it may be dead
    heard = any(report.reported_at is not None or report.outcome is not None for report in reports)
    if not heard and not asked and any(actor is None for actor in actors):
        return None
    waiting = _waiting(tables, group)
    nodes = {node.id: node for node in tables.nodes}
    names = node_names(tables)
    return [
        _life(
            report,
            actor,
            node=nodes.get(actor.node_id) if actor else None,
            names=names,
            waiting=waiting,
            is_silent=_is_silent(report, listening_since, now),
        )
        for report, actor in zip(reports, actors, strict=True)
    ]


def _is_silent(report: NodeReport, listening_since: float, now: float) -> bool:
    if report.reported_at is None:
        return True
    return now - max(report.reported_at, listening_since + RETURN_S) >= patience_s(report, SILENT_S)


def _waiting(tables: Tables, group: str) -> str:
    found = tables.groups.get(group)
    if found is None or found.state == "CREATED":
        return "starting in Ray"
    return f"waiting in Ray for its placement group ({found.state.lower()})"


def _life(
    report: NodeReport,
    actor: RayActor | None,
    *,
    node: RayNode | None,
    names: Mapping[str, str],
    waiting: str,
    is_silent: bool,
) -> NodeLife:
    name = names[node.id] if node is not None else "unknown"
    if actor is not None and actor.state == "ALIVE" and (node is None or node.alive):
        return NodeLife(life=Life.ALIVE, notice=_notice(node, name))
    if not is_silent:
        return NodeLife(life=Life.ALIVE)
    if actor is not None and actor.state in ("ALIVE", "DEAD"):
        is_gone = node is not None and not node.alive
        what = f"node {name} is gone" if is_gone else f"its actor on node {name} ended"
        message = f"{what}: {actor.death}" if actor.death else what
        reason = _REASONS.get(actor.cause, ExitReason.LOST)
        trouble = NODE if is_gone and reason is ExitReason.LOST else None
        at = actor.ended_at or report.reported_at
        return NodeLife(life=Life.GONE, at=at, reason=reason, message=message, trouble=trouble)
    if actor is None and report.reported_at is not None:
        message = "Ray does not know its actor any more, and the node is silent"
        return NodeLife(life=Life.GONE, at=report.reported_at, message=message)
    return NodeLife(life=Life.WAITING, message=waiting)


def _notice(node: RayNode | None, name: str) -> Notice | None:
    if node is None or not node.draining:
        return None
    return Notice(message=f"Ray drains node {name}", deadline=node.drain_deadline)
