"""What does Windlass cost on a cluster, against the cluster's own tool?

Part one: from the start of the submitting command to the script's first line, and trivial runs a second, on Ray, Slurm
and Kubernetes, in alternating rounds. Part two: the server with 10 to 10,000 live runs on as many simulated nodes, on
PostgreSQL. Part three: how often Slurm is asked, with few and with many runs.
"""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also as `python bench/engines.py`

from bench.growth import Growth, measure_growth
from bench.harness import BIN, Figure, Report, Table, alternate, finish, medians, options, tell, workspace
from bench.places import Place, opened_places
from bench.rates import windlass_rate
from bench.slurmcalls import calls_a_minute
from windlass.testing.servers import ServerProcess

PROGRAM = Path(__file__).resolve().parent / "programs" / "first_words.py"
TYPES = ("ray", "slurm", "kubernetes")
_PATIENCE_S = 120.0


class Launches:
    """First lines on one cluster."""

    def __init__(self, folder: Path, place: Place, server: ServerProcess) -> None:
        self._folder = folder
        self._place = place
        self._server = server
        self._serial = 0
        self._program = [place.python, shutil.copy(PROGRAM, folder)]

    def windlass(self) -> float:
        environ = {**os.environ, "WINDLASS_HOME": str(self._server.home)}
        stamp = self._stamp()
        command = [str(BIN / "windlass"), "run", "--detach", "--no-snapshot", "--", *self._program, str(stamp)]
        return self._time(stamp, functools.partial(_run, command, environ, self._folder))

    def own_tool(self) -> float:
        stamp = self._stamp()
        return self._time(stamp, functools.partial(self._place.submit, [*self._program, str(stamp)]))

    def own_rate(self, count: int) -> float:
        """Jobs a second through the cluster's own tool, from a few threads, to the last script's end."""
        stamps = [self._stamp() for _ in range(count)]
        began = time.time()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda stamp: self._place.submit([*self._program, str(stamp)]), stamps))
        last = max(_await(stamp) for stamp in stamps)
        self._place.settle()
        return count / (last - began)

    def _time(self, stamp: Path, submit: Callable[[], None]) -> float:
        began = time.time()
        submit()
        took = _await(stamp) - began
        self._place.settle()
        time.sleep(1.0)
        return took

    def _stamp(self) -> Path:
        self._serial += 1
        return self._folder / f"{self._place.type}-{self._serial}"


def _await(stamp: Path) -> float:
    deadline = time.monotonic() + _PATIENCE_S
    while not stamp.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no first line in {stamp.name}")
        time.sleep(0.005)
    return float(stamp.read_text())


def _run(command: list[str], environ: dict[str, str], folder: Path) -> None:
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{command} exited with {done.returncode}:\n{done.stdout!r}\n{done.stderr!r}")


def measure_place(
    folder: Path, place: Place, server: ServerProcess, *, rounds: int, count: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds to the first line, and runs a second, by arm."""
    launches = Launches(folder, place, server)
    tell(f"{place.type}: warming up")
    launches.windlass()
    launches.own_tool()
    times = alternate({"windlass": launches.windlass, place.tool: launches.own_tool}, rounds=rounds)
    rates = alternate(
        {
            "windlass": functools.partial(windlass_rate, server, folder / f"work-{place.type}", count=count),
            place.tool: functools.partial(launches.own_rate, count),
        },
        rounds=1 if rounds < 5 else 2,
    )
    return times, rates


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__)
    parser.add_argument("--only", action="append", choices=(*TYPES, "growth", "calls"), help="just this part")
    parser.add_argument("--most", type=int, help="the largest number of runs in part two")
    given = parser.parse_args(arguments)
    parts = given.only or [*TYPES, "growth", "calls"]
    report = Report(bench="engines")
    with workspace() as folder:
        wanted = [type for type in TYPES if type in parts]
        for type in wanted:
            with opened_places(folder, [type]) as [(place, server)]:
                times, rates = measure_place(
                    folder, place, server, rounds=5 if given.quick else 11, count=12 if given.quick else 40
                )
            _add_place(report, place, times, rates)
        if "growth" in parts:
            most = given.most or (1_000 if given.quick else 10_000)
            counts = [count for count in (10, 100, 1_000, 10_000) if count <= most]
            _add_growth(report, measure_growth(folder, counts, watch_s=10.0))
        if "calls" in parts:
            _add_calls(report, calls_a_minute(folder, [2, 20 if given.quick else 60]))
    finish(report)
    return 0


def _add_place(report: Report, place: Place, times: dict[str, list[float]], rates: dict[str, list[float]]) -> None:
    middle = medians(times)
    ratio = middle["windlass"] / middle[place.tool]
    report.figures[f"{place.type}_launch_ratio"] = Figure(value=ratio, target=1.2, better="lower")
    report.tables.append(
        Table(
            title=f"{place.type}: seconds from the submitting command to the first line, and trivial runs a second",
            header=("arm", "first line, median (least to most)", "runs/s"),
            rows=[
                [
                    arm,
                    f"{statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})",
                    statistics.median(rates[arm]),
                ]
                for arm, found in times.items()
            ],
        )
    )


def _add_growth(report: Report, growths: list[Growth]) -> None:
    for growth in growths:
        if growth.runs == 1_000:
            report.figures["controller_pass_ms_1000"] = Figure(value=growth.pass_ms, target=250.0, better="lower")
    report.tables.append(
        Table(
            title="The server with so many live runs on as many simulated nodes, on PostgreSQL",
            header=(
                *("runs", "until all run, s", "pass, ms", "pass p99, ms", "API p50, ms", "API p99, ms"),
                *("CPU % when nobody asks", "RSS, MB", "database, MB"),
            ),
            rows=[
                [
                    *(g.runs, g.submit_s, g.pass_ms, g.pass_p99_ms, g.api_p50_ms, g.api_p99_ms),
                    *(g.cpu_percent, g.rss_mb, g.database_mb),
                ]
                for g in growths
            ],
        )
    )
    report.notes.append(
        "Simulated nodes: an engine without processes whose attempts use something else at every look. PostgreSQL "
        "writes to disk before it answers. Two users look at lists and records, a request every 20 ms each; server, "
        "database and users share the machine."
    )


def _add_calls(report: Report, calls: dict[int, float]) -> None:
    few, many = min(calls), max(calls)
    report.figures["slurm_calls_ratio"] = Figure(value=calls[many] / calls[few], target=1.1, better="lower")
    report.tables.append(
        Table(
            title="How often Slurm is asked how things are (squeue, sinfo, scontrol, sacct)",
            header=("live runs", "calls a minute"),
            rows=[[count, calls[count]] for count in sorted(calls)],
        )
    )


if __name__ == "__main__":
    sys.exit(main())
