"""`simulate`: replays a trace through the scheduler on a virtual clock, by one policy or several. Needs no server, but
for replaying what ran there.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.connection import open_client
from windlass.cli.terminal import notice, say, say_json
from windlass.core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from windlass.simulation.cluster import Cluster
    from windlass.simulation.comparison import Tried
    from windlass.simulation.trace import Trace

TraceFile = Annotated[Path | None, typer.Option("--trace", help="CSV as of the Philly trace, or runs as JSON lines.")]
History = Annotated[
    str | None, typer.Option("--history", help="Instead: what the server ran in so long until now, e.g. 30d.")
]
ClusterFile = Annotated[
    Path | None, typer.Option("--cluster", help="Nodes and projects, as YAML. Default with --load: 8-GPU nodes.")
]
PolicyNames = Annotated[
    list[str] | None,
    typer.Option("--policy", help="windlass, fifo, backfill, least-attained, no-preemption, clairvoyant; repeatable."),
]
Load = Annotated[
    float | None,
    typer.Option("--load", help="As many nodes as make the trace's GPU time this part of theirs, e.g. 0.8."),
]
RestartS = Annotated[float, typer.Option("--restart-s", min=0, help="What coming back after a preemption costs.")]
PassS = Annotated[float, typer.Option("--pass-s", min=0, help="The scheduler looks at most once in so many seconds.")]
OneIn = Annotated[int, typer.Option("--one-in", min=1, help="Only every N-th job of the trace.")]
OneProject = Annotated[bool, typer.Option("--one-project", help="No shares between projects: all are one.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Write the distribution of times as .svg or .html.")]


_ENDED = ("succeeded", "failed", "cancelled")


def simulate(
    ctx: typer.Context,
    trace: TraceFile = None,
    history: History = None,
    cluster: ClusterFile = None,
    policy: PolicyNames = None,
    load: Load = None,
    restart_s: RestartS = 60.0,
    pass_s: PassS = 30.0,
    one_in: OneIn = 1,
    one_project: OneProject = False,
    plot: Plot = None,
    json: options.Json = False,
) -> None:
    """Replay a trace through the scheduler on a virtual clock, and compare policies."""
    from windlass.simulation.comparison import try_policy
    from windlass.simulation.plot import check_plot, write_plot
    from windlass.simulation.policies import DEFAULT, check_policy
    from windlass.simulation.replay import Conditions

    names = list(dict.fromkeys(policy or [DEFAULT]))
    for name in names:
        check_policy(name)
    if plot is not None:
        check_plot(plot)
    jobs, origin = _jobs(ctx, trace, history)
    jobs = jobs.one_in(one_in) if one_in > 1 else jobs
    jobs = jobs.as_one_project() if one_project else jobs
    machines = _cluster(cluster, jobs, load)
    conditions = Conditions(restart_s=restart_s, pass_s=pass_s)
    tried: dict[str, Tried] = {}
    with _progress(len(jobs.jobs)) as show:
        for name in names:
            tried[name] = try_policy(name, jobs, machines, conditions, told=show(name))
    title = f"{len(jobs.jobs):,} jobs of {origin} on {machines.gpus:,} GPUs"
    if (offered := jobs.load_of(machines.gpus)) is not None:
        title += f", load {offered:.0%}"
    if plot is not None:
        write_plot(plot, title, {name: each.times_s for name, each in tried.items()})
        notice(f"written to {plot}")
    if json:
        say_json({"title": title, "gpus": machines.gpus, "policies": [asdict(each.figures) for each in tried.values()]})
        return
    _print_table(title, list(tried.values()))


def _jobs(ctx: typer.Context, path: Path | None, history: str | None) -> tuple[Trace, str]:
    """The jobs, and in words where they are from."""
    from windlass.core.quantities import parse_duration
    from windlass.simulation.trace import read_trace, trace_of_runs

    if path is not None and history is None:
        return read_trace(path), path.name
    if path is not None or history is None:
        raise InvalidInput("what is to be replayed? give --trace FILE, or --history, e.g. 30d; one of the two")
    try:
        since = time.time() - parse_duration(history)
    except ValueError as error:
        raise InvalidInput(f"--history {history}: {error}") from None
    client = open_client(ctx)
    ended = itertools.takewhile(lambda run: run.submitted_at >= since, client.list(state=_ENDED))
    ids = [run.id for run in ended if run.cost.gpu_hours > 0]
    notice(f"reading {len(ids):,} runs")
    runs = []
    for run_id in ids:
        with contextlib.suppress(NotFound):  # it was removed meanwhile
            runs.append(client.get(run_id).view)
    if not runs:
        raise InvalidInput(f"no run with GPUs was submitted within {history} and has ended; give a longer --history")
    return trace_of_runs(run.model_dump(mode="json") for run in runs), f"the last {history}"


def _cluster(path: Path | None, trace: Trace, load: float | None) -> Cluster:
    from windlass.simulation.cluster import read_cluster, uniform_cluster

    if load is not None and not 0 < load <= 10:
        raise InvalidInput(f"--load {load:g}: a load is above 0 and at most 10, e.g. 0.8")
    if load is not None and trace.span_s <= 0:
        raise InvalidInput("--load needs a trace with two submissions at different times; give --cluster alone")
    if path is None:
        if load is None:
            raise InvalidInput("how many nodes are there? give --cluster FILE, or --load, e.g. 0.8, or both")
        return uniform_cluster(trace.gpus_for(load))
    cluster = read_cluster(path)
    return cluster if load is None else cluster.with_gpus(trace.gpus_for(load))


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], Callable[[int], None]]]:
    """A bar for each policy, on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda _name: lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:>15}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:

        def show(name: str) -> Callable[[int], None]:
            task = bars.add_task(name, total=total)
            return lambda done: bars.update(task, completed=done)

        yield show


def _print_table(title: str, tried: list[Tried]) -> None:
    from rich.console import Console
    from rich.table import Table

    from windlass.core.quantities import format_duration

    table = Table(title=title, title_justify="left")
    table.add_column("")
    for each in tried:
        table.add_column(each.figures.policy, justify="right")
    found = [each.figures for each in tried]
    best = min(each.mean_s for each in found)
    rows: list[tuple[str, list[str]]] = [
        ("mean completion", [format_duration(each.mean_s) for each in found]),
        ("  over the best", [f"{each.mean_s / best:.3f}" if best else "" for each in found]),
        ("median", [format_duration(each.median_s) for each in found]),
        ("95%", [format_duration(each.p95_s) for each in found]),
        ("99%", [format_duration(each.p99_s) for each in found]),
        ("mean waiting", [format_duration(each.waiting_s) for each in found]),
        ("GPUs in use", [_percent(each.utilisation) for each in found]),
        ("fairness (Jain)", ["" if each.fairness is None else f"{each.fairness:.3f}" for each in found]),
        ("share error", [_percent(each.share_error) for each in found]),
        ("preemptions", [f"{each.preemptions:,}" for each in found]),
        ("lost GPU-hours", [f"{each.lost_gpu_hours:,.1f}" for each in found]),
        ("cost", ["" if each.usd is None else f"${each.usd:,.0f}" for each in found]),
    ]
    for label, cells in rows:
        if any(cells):
            table.add_row(label, *cells)
    if sys.stdout.isatty():
        Console().print(table)
    else:
        console = Console(width=40 + 18 * len(tried))
        with console.capture() as capture:
            console.print(table)
        say(capture.get().rstrip())


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
