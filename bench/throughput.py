"""How many runs a second, and how quickly does the API answer with a crowd of them?

Part one: trivial runs (`true`) through the real server and the real local engine, against Ray's jobs and submitit on
the same machine, in alternating rounds. Part two: live runs that all report, on an engine that only pretends, in a
real server with a long history; readers ask for lists and records meanwhile.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also as `python bench/throughput.py`

from bench.crowd import EVERY_S, READERS, Crowd, measure_crowd, rows_of
from bench.harness import Figure, Report, Table, alternate, finish, medians, options, percentile, tell, workspace
from bench.rates import IN_FLIGHT, ray_rate, submitit_rate, windlass_rate
from bench.rayhead import running_ray
from windlass.testing.servers import running_server


def measure_rates(folder: Path, counts: dict[str, int], *, rounds: int) -> dict[str, list[float]]:
    serial = itertools.count()
    with running_ray(folder) as ray, running_server(folder / "home") as server:
        tell("warming up")
        windlass_rate(server, folder / "work", count=5)
        ray_rate(ray.jobs, count=2)
        arms: dict[str, Callable[[], float]] = {
            "windlass": functools.partial(windlass_rate, server, folder / "work", count=counts["windlass"]),
            "ray jobs": functools.partial(ray_rate, ray.jobs, count=counts["ray jobs"]),
            "submitit": lambda: submitit_rate(folder / f"submitit-{next(serial)}", count=counts["submitit"]),
        }
        return alternate(arms, rounds=rounds)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__)
    parser.add_argument("--live", type=int, default=1_000, help="runs that report")
    parser.add_argument("--finished", type=int, default=100_000, help="runs in the record")
    parser.add_argument("--database-url", help="an empty database for part two; default: SQLite, as embedded")
    parser.add_argument("--part", choices=("rates", "crowd"), help="only this part")
    given = parser.parse_args(arguments)
    counts = {"windlass": 150 if given.quick else 1_000, "ray jobs": 8 if given.quick else 30}
    counts["submitit"] = 20 if given.quick else 60
    report = Report(bench="throughput")
    with workspace() as folder:
        if given.part != "crowd":
            _add_rates(report, measure_rates(folder, counts, rounds=2 if given.quick else 3), counts)
        if given.part != "rates":
            crowd = measure_crowd(
                folder,
                live=given.live,
                finished=given.finished,
                read_s=8.0 if given.quick else 20.0,
                database=given.database_url,
            )
            _add_crowd(report, crowd, given.live, given.finished, "PostgreSQL" if given.database_url else "SQLite")
    finish(report)
    return 0


def _add_rates(report: Report, measured: dict[str, list[float]], counts: dict[str, int]) -> None:
    middle = medians(measured)
    for key, peer in (("runs_per_s_vs_ray", "ray jobs"), ("runs_per_s_vs_submitit", "submitit")):
        report.figures[key] = Figure(value=middle["windlass"] / middle[peer], target=1.0, better="higher")
    report.tables.append(
        Table(
            title="Trivial runs a second, from the first submission to the last recorded end",
            header=("arm", "runs in a round", "runs/s, median", "rounds"),
            rows=[
                [arm, counts[arm], statistics.median(rates), " ".join(f"{rate:.3g}" for rate in rates)]
                for arm, rates in measured.items()
            ],
        )
    )
    report.notes.append(
        f"{IN_FLIGHT} threads submit in every arm. Windlass: `true` through the SDK, queue, database and supervisor of "
        "each run included, a tenth of a core asked for each. Ray: entrypoint `true` through JobSubmissionClient. "
        "submitit: LocalExecutor with a function that does nothing."
    )


def _add_crowd(report: Report, crowd: Crowd, live: int, finished: int, database: str) -> None:
    for key, prefix in (("list_p99_ms", "list"), ("show_p99_ms", "show")):
        p99_ms = 1000 * percentile(crowd.latencies.of(prefix), 0.99)
        report.figures[key] = Figure(value=p99_ms, target=100.0, better="lower")
    report.tables += [
        Table(
            title=f"{live} live and {finished} finished runs on {database}: milliseconds to an answer",
            header=("request", "asked", "p50", "p99", "most"),
            rows=rows_of(crowd.latencies),
        ),
        Table(
            title="The server meanwhile",
            header=("what", "value"),
            rows=[
                ["reports/s (10 steps of 3 metrics each)", crowd.reports_per_s],
                ["report p99, ms", crowd.report_p99_ms],
                ["reads/s", crowd.reads_per_s],
                ["cpu_percent, reports only (100 is one core)", crowd.quiet_cpu_percent],
                ["cpu_percent, reports and readers", crowd.cpu_percent],
                ["rss_mb", crowd.rss_mb],
            ],
        ),
    ]
    report.notes.append(
        f"Every live run reports every {EVERY_S:g} s. {READERS} readers ask again as soon as they are answered, so the "
        "server is never idle. Clients, reporters and server share the machine."
    )


if __name__ == "__main__":
    sys.exit(main())
