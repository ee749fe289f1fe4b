"""What Prometheus is told: runs by state, what they used, nodes and who holds them, and the live runs' own figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from windlass.core.exposition import Family, Sample, counter, gauge
from windlass.runs import store
from windlass.runs.cluster import view_cluster
from windlass.runs.progress import load_marks
from windlass.runs.tables import attempts, runs
from windlass.runs.types import AttemptState, RunState
from windlass.tracking.store import load_summaries
from windlass.tracking.system import without_system
from windlass.wire.cluster import ClusterView, NodeView

# A scrape costs what it tells: of very many live runs, the oldest tell of themselves, and each of its first metrics.
MOST_RUNS = 200
MOST_METRICS = 100


def load_gauges(tx: Connection, *, now: float) -> list[Family]:
    return [*_runs(tx, now), *_cluster(view_cluster(tx, now=now)), *_live_runs(tx)]


def _runs(tx: Connection, now: float) -> Iterator[Family]:
    rows = tx.execute(
        select(
            runs.c.project,
            runs.c.state,
            func.count(),
            func.sum(runs.c.gpu_hours),
            func.sum(runs.c.cpu_hours),
            func.sum(runs.c.cost_usd),
        ).group_by(runs.c.project, runs.c.state)
    ).all()
    by_state = [Sample(count, {"project": project, "state": state}) for project, state, count, *_ in rows]
    yield gauge("windlass_runs", "Runs by project and state.", by_state)
    used = (
        ("windlass_gpu_hours_total", "GPU hours of ended attempts.", 3),
        ("windlass_cpu_hours_total", "CPU core hours of ended attempts.", 4),
        ("windlass_cost_usd_total", "Dollars spent by ended attempts.", 5),
    )
    for name, text, column in used:
        sums: dict[str, float] = {}
        for row in rows:
            sums[row[0]] = sums.get(row[0], 0.0) + (row[column] or 0.0)
        yield counter(name, text, [Sample(value, {"project": project}) for project, value in sorted(sums.items())])
    waiting = runs.c.state == RunState.QUEUED
    oldest = tx.execute(
        select(runs.c.project, func.min(runs.c.queued_at)).where(waiting).group_by(runs.c.project)
    ).all()
    yield gauge(
        "windlass_queue_oldest_seconds",
        "How long the first in a project's queue has waited.",
        [Sample(round(max(0.0, now - at), 3), {"project": project}) for project, at in oldest],
    )


def _cluster(cluster: ClusterView) -> Iterator[Family]:
    reached = [
        Sample(float(engine.unreachable_since is None), {"engine": engine.name, "type": engine.type})
        for engine in cluster.engines
    ]
    yield gauge("windlass_engine_up", "1 if the engine answered when it was asked last.", reached)
    aside = [Sample(1, {"engine": node.engine, "node": node.node}) for node in cluster.set_aside]
    yield gauge("windlass_node_set_aside", "Nodes that nothing is placed on.", aside)
    figures: tuple[tuple[str, str, Any], ...] = (
        ("windlass_node_cpus", "CPU cores of a node.", lambda node: node.cpus),
        ("windlass_node_cpus_used", "CPU cores that runs hold.", lambda node: node.cpus_used),
        ("windlass_node_memory_bytes", "Memory of a node.", lambda node: node.memory_bytes),
        ("windlass_node_memory_used_bytes", "Memory that runs hold.", lambda node: node.memory_used_bytes),
        ("windlass_node_gpus", "GPUs of a node.", lambda node: node.gpus),
        ("windlass_node_gpus_used", "GPUs that runs hold.", lambda node: node.gpus_used),
        ("windlass_node_price_per_hour", "Dollars an hour, where it is known.", lambda node: node.price_per_hour),
    )
    for name, text, read in figures:
        yield gauge(name, text, [Sample(read(node), _node(node)) for node in cluster.nodes])


def _node(node: NodeView) -> dict[str, str]:
    return {"engine": node.engine, "node": node.name, "gpu_type": node.gpu_type or ""}


def _live_runs(tx: Connection) -> Iterator[Family]:
    query = (
        select(runs.c.id, runs.c.name, runs.c.project, attempts.c.usage)
        .select_from(attempts.join(runs, attempts.c.run_id == runs.c.id))
        .where(attempts.c.state == AttemptState.RUNNING, runs.c.state.in_(list(store.LIVE)))
        .order_by(attempts.c.created_at)
        .limit(MOST_RUNS)
    )
    live = tx.execute(query).all()
    names = {row.id: {"run": row.id, "name": row.name, "project": row.project} for row in live}
    marks, summaries = load_marks(tx, list(names)), load_summaries(tx, list(names))
    steps = [Sample(mark.step, names[run_id]) for run_id, mark in marks.items()]
    yield gauge("windlass_run_step", "The newest step of a live run.", steps)
    totals = [Sample(mark.total, names[run_id]) for run_id, mark in marks.items() if mark.total is not None]
    yield gauge("windlass_run_steps", "Steps that there will be.", totals)
    etas = [Sample(eta, names[run_id]) for run_id, mark in marks.items() if (eta := mark.eta_s()) is not None]
    yield gauge("windlass_run_eta_seconds", "Time to the last step at the speed so far.", etas)
    values = [
        Sample(float("nan") if summary.last is None else summary.last, {**names[run_id], "metric": metric})
        for run_id, found in summaries.items()
        for metric, summary in list(without_system(found).items())[:MOST_METRICS]
    ]
    yield gauge("windlass_run_metric", "The newest value of what a live run logs.", values)
    yield from _usage([(names[row.id], row.usage) for row in live if row.usage])


def _usage(used: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]]) -> Iterator[Family]:
    for key, name, text, factor in (
        ("cpu_percent", "windlass_run_cpu_cores", "CPU cores that a live run keeps busy.", 0.01),
        ("rss_bytes", "windlass_run_rss_bytes", "Resident memory of a live run's processes.", 1.0),
    ):
        found = [Sample(usage[key] * factor, run) for run, usage in used if isinstance(usage.get(key), (int, float))]
        yield gauge(name, text, found)
    for key, name, text, factor in (
        ("utilization_percent", "windlass_run_gpu_utilization", "Busy share of a GPU, from 0 to 1.", 0.01),
        ("memory_used_bytes", "windlass_run_gpu_memory_bytes", "Memory in use on a GPU.", 1.0),
        ("power_watts", "windlass_run_gpu_power_watts", "Power that a GPU draws.", 1.0),
        ("temperature_celsius", "windlass_run_gpu_temperature_celsius", "Temperature of a GPU.", 1.0),
    ):
        samples = [
            Sample(gpu[key] * factor, {**run, "gpu": str(number)})  # by their place: several nodes have a GPU 0
            for run, usage in used
            for number, gpu in enumerate(usage.get("gpus") or ())
            if isinstance(gpu.get(key), (int, float))
        ]
        yield gauge(name, text, samples)
