"""What is the scheduler's order worth, does it share as it should, and how quickly does it decide?

Completion: a trace replayed through the scheduler itself on one pool of GPUs, at two loads, with a minute for each
restart, against first come first served and against the shortest remaining GPU time first, by who knows it, with free
preemption. The load is the GPU time of all jobs over that of the pool between the first submission and the last; the
replay goes on until all have ended. Shares: three projects weighted 3:2:1 in an overloaded cluster. Speed: single
passes over clusters and queues that grow.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also as `python bench/schedule.py`

from bench.crowded_queue import crowded_snapshot, empty_snapshot
from bench.harness import Figure, Report, Table, finish, options, tell
from windlass.scheduling.core.decide import decide
from windlass.simulation.cluster import Cluster, NodeGroup, ProjectShare, uniform_cluster
from windlass.simulation.figures import Figures, figures_of, figures_of_ends
from windlass.simulation.policies import DEFAULT, POLICIES
from windlass.simulation.reference import clairvoyant, first_come
from windlass.simulation.replay import Conditions, Contention, replay
from windlass.simulation.trace import Trace, make_trace, read_trace, synthetic_trace

LOADS = {80: 0.80, 95: 0.95}
TARGETS = {80: 1.10, 95: 1.30}
WEIGHTS = {"three": 3.0, "two": 2.0, "one": 1.0}
SIZES = (100, 1_000, 10_000, 100_000)


def measure_completion(report: Report, trace: Trace, given: argparse.Namespace) -> None:
    conditions = Conditions(restart_s=given.restart_s, pass_s=given.pass_s)
    for percent, load in LOADS.items():
        gpus = trace.gpus_for(load)
        best = figures_of_ends("clairvoyant", trace, clairvoyant(trace, gpus))
        strict = figures_of_ends("FIFO, strict", trace, first_come(trace, gpus, backfill=False))
        filled = figures_of_ends("FIFO, who fits goes ahead", trace, first_come(trace, gpus, backfill=True))
        arms = {
            "least attained service": (POLICIES["least-attained"], gpus),
            "windlass": (POLICIES[DEFAULT], gpus),
        }
        if not given.quick:
            arms["windlass, 8-GPU nodes"] = (POLICIES[DEFAULT], 8)
        found = [strict, filled]
        for name, (policy, per_node) in arms.items():
            began = time.monotonic()
            cluster = uniform_cluster(gpus, per_node=per_node)
            found.append(figures_of(name, trace, cluster, replay(trace, cluster, policy, conditions)))
            tell(f"{percent}% {name}: {found[-1].mean_s / best.mean_s:.3f}, {time.monotonic() - began:.0f} s")
        ours = next(each for each in found if each.policy == "windlass")
        report.figures[f"jct_vs_oracle_{percent}"] = Figure(
            value=ours.mean_s / best.mean_s, target=TARGETS[percent], better="lower"
        )
        report.figures[f"p99_vs_fifo_{percent}"] = Figure(value=ours.p99_s / strict.p99_s, target=1.0, better="lower")
        title = f"{len(trace.jobs):,} jobs, {gpus} GPUs, {percent}% load, {given.restart_s:g} s for each restart"
        report.tables.append(_completion_table(title, [*found, best], best))


def _completion_table(title: str, found: list[Figures], best: Figures) -> Table:
    header = ("order", "mean h", "over clairvoyant", "median h", "p95 h", "p99 h", "preemptions", "lost GPU-h")
    rows = [
        (
            each.policy,
            each.mean_s / 3600,
            each.mean_s / best.mean_s,
            each.median_s / 3600,
            each.p95_s / 3600,
            each.p99_s / 3600,
            each.preemptions,
            each.lost_gpu_hours,
        )
        for each in found
    ]
    return Table(title=title, header=header, rows=rows)


def measure_shares(report: Report, *, jobs: int) -> None:
    """Runs of one GPU, and with gangs of up to a node, for which room has to come together first."""
    for key, widest in (("share_error", 1), ("share_error_gangs", 8)):
        rows = _shares(widest, jobs)
        report.figures[key] = Figure(value=max(abs(row[4]) for row in rows), target=0.02, better="lower")
        title = f"Shares in an overloaded cluster of 8-GPU nodes, runs of up to {widest} GPUs"
        header = ("project", "weight", "got", "due", "error")
        report.tables.append(Table(title=title, header=header, rows=rows))


def _shares(widest: int, jobs: int) -> list[tuple[str, float, float, float, float]]:
    """Each of the three submits as much as the whole cluster could do, for days."""
    gpus, names = 96, list(WEIGHTS)  # so that every share is a whole number of GPUs
    made = [job for job in synthetic_trace(jobs=jobs, span_s=1.0, seed=7).jobs if job.gpus <= widest]
    made = [replace(job, seconds=min(job.seconds, 4 * 3600.0)) for job in made]
    span_s = math.fsum(job.gpu_seconds for job in made) / (gpus * len(names))
    trace = make_trace(replace(job, at=job.at * span_s, project=names[n % 3]) for n, job in enumerate(made))
    cluster = Cluster(
        nodes=(NodeGroup(count=gpus // 8, gpus=8),),
        projects={name: ProjectShare(weight=weight) for name, weight in WEIGHTS.items()},
    )
    # While queues fill up everybody gets what is free: shares are those of a cluster that has been full for a while.
    contention = replay(
        trace, cluster, POLICIES[DEFAULT], until=trace.span_s, contended_from=trace.span_s / 4
    ).contention
    got = math.fsum(each.got for each in contention.values())
    due = math.fsum(each.due for each in contention.values())
    return [
        (name, weight, contention[name].got / got, contention[name].due / due, _error(contention[name]))
        for name, weight in WEIGHTS.items()
    ]


def _error(contention: Contention) -> float:
    return contention.got / contention.due - 1.0


def measure_speed(report: Report, *, rounds: int) -> None:
    policy = POLICIES[DEFAULT]
    rows: list[tuple[object, ...]] = []
    before: float | None = None
    for runs in SIZES:
        snapshot, now = crowded_snapshot(queued=runs, gpus=runs, running=runs // 10)
        times = []
        for _ in range(rounds):
            gc.collect()
            began = time.perf_counter()
            decisions = decide(snapshot, policy, now)
            times.append(1000 * (time.perf_counter() - began))
        taken = statistics.median(times)
        growth = "" if before is None else f"{taken / before:.1f}"
        rows.append((runs, runs // 8, runs // 10, taken, growth, len(decisions.starts), len(decisions.stops)))
        tell(f"{runs} queued: {taken:.2f} ms")
        if runs == 10_000:
            report.figures["pass_ms_10k"] = Figure(value=taken, target=100.0, better="lower")
        before = taken
    first, last = float(str(rows[0][3])), float(str(rows[-1][3]))
    bound = SIZES[-1] * math.log2(SIZES[-1]) / (SIZES[0] * math.log2(SIZES[0]))
    report.figures["growth_vs_nlogn"] = Figure(value=last / first / bound, target=1.0, better="lower")
    report.tables.append(
        Table(
            title="One pass (ten times the runs: n log n is 15, 13.3, 12.5 times the time)",
            header=("queued", "nodes of 8 GPUs", "running gangs", "ms", "times", "starts", "stops"),
            rows=rows,
        )
    )
    report.figures["placements_per_s"] = Figure(value=_placements_per_s(rounds), target=5000, better="higher")


def _placements_per_s(rounds: int) -> float:
    """Pass after pass on a cluster of 10,000 GPUs from which everything has gone in between."""
    placed, taken = 0, 0.0
    for number in range(rounds):
        snapshot, now = empty_snapshot(queued=5_000, gpus=10_000, seed=number)
        gc.collect()
        began = time.perf_counter()
        placed += len(decide(snapshot, POLICIES[DEFAULT], now).starts)
        taken += time.perf_counter() - began
    return placed / taken


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__)
    parser.add_argument("--trace", type=Path, help="CSV with timestamp, duration, num_gpus; default: a synthetic one")
    parser.add_argument("--one-in", type=int, default=1, help="only every N-th job of the trace")
    parser.add_argument("--restart-s", type=float, default=60.0)
    parser.add_argument(
        "--pass-s", type=float, default=60.0, help="the scheduler looks at most once in so many seconds"
    )
    parser.add_argument("--part", choices=("completion", "shares", "speed"), help="only this part")
    given = parser.parse_args(arguments)
    report = Report(bench="schedule")
    if given.part in (None, "completion"):
        if given.trace is not None:
            trace = read_trace(given.trace)
        else:
            trace = synthetic_trace(jobs=4_000 if given.quick else 12_000, span_s=(10 if given.quick else 30) * 86400.0)
            report.notes.append("The trace is synthetic; --trace FILE takes a real one.")
        # One project: shares between projects are another aim than early ends. What was a project tells kinds apart.
        trace = trace.as_one_project()
        measure_completion(report, trace.one_in(given.one_in) if given.one_in > 1 else trace, given)
    if given.part in (None, "shares"):
        measure_shares(report, jobs=1_500 if given.quick else 6_000)
    if given.part in (None, "speed"):
        measure_speed(report, rounds=3 if given.quick else 7)
    finish(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
