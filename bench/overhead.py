"""How many steps a second does a training loop make under Windlass with all accounting on, over the same loop bare?

Three processes of the same script are alive at once, one under Windlass and two bare ones, and only one of them steps
at a time, in windows that alternate. The bare ones have neither `job.steps` nor `job.loader`; one against the other
shows what the method cannot tell apart. While a bare one steps, every process of Windlass is stopped: work it has put
off counts against Windlass, not for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also as `python bench/overhead.py`

from bench.harness import BIN, Figure, Report, Table, finish, median_interval, options, tell, workspace
from windlass.agent import kernel
from windlass.testing.servers import ServerProcess, processes_of, running_server

SCRIPT = Path(__file__).resolve().parent / "programs" / "training_loop.py"
WINDOW_S = 0.5
_PATIENCE_S = 120.0
ARMS = ("bare", "windlass", "bare again")


@dataclass(slots=True, kw_only=True)
class Loop:
    """One process of the script, and the two ends of its pipes that are ours."""

    folder: Path
    process: subprocess.Popen[bytes]
    go: TextIO
    done: TextIO
    cpu_ms_per_step: list[float] = field(default_factory=list)

    def steps_per_s(self, window_s: float) -> float:
        self.go.write(f"{window_s}\n")
        self.go.flush()
        steps, took, cpu_s = self.done.readline().split()
        self.cpu_ms_per_step.append(1000 * float(cpu_s) / int(steps))
        return int(steps) / float(took)


@contextlib.contextmanager
def running_loop(folder: Path, command: Sequence[str], *, home: Path) -> Iterator[Loop]:
    folder.mkdir()
    for name in ("go", "done"):
        os.mkfifo(folder / name)
    environ = {**os.environ, "WINDLASS_HOME": str(home)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(folder)], env=environ, cwd=SCRIPT.parent, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        with _open_when_read(folder / "go", process, folder / "log") as go, open(folder / "done") as done:
            yield Loop(folder=folder, process=process, go=go, done=done)
        if process.wait(60) != 0:
            raise RuntimeError(f"{command} exited with {process.returncode}:\n{(folder / 'log').read_text()[-2000:]}")
    finally:
        process.kill()
        process.wait()


def _open_when_read(path: Path, process: subprocess.Popen[bytes], log: Path) -> TextIO:
    """Our end of the pipe, once the script has loaded torch, made its first steps and opened the other end."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        else:
            os.set_blocking(fd, True)
            return os.fdopen(fd, "w")
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                f"{process.args!r} does not come to its loop:\n{log.read_text(errors='replace')[-2000:]}"
            )
        time.sleep(0.02)


@dataclass(slots=True, kw_only=True)
class Rates:
    """Steps a second of one trio of processes, window by window."""

    bare: list[float] = field(default_factory=list)
    windlass: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    cpu_ms_per_step: dict[str, float] = field(default_factory=dict)  # by arm: of the loop's own process
    cpu_percent: float = 0.0  # of everything of Windlass but the loop itself, while the loop under it steps

    def ratios(self) -> list[float]:
        """Each window under Windlass over the mean of the bare ones on both sides of it."""
        return [
            ours / ((before + after) / 2)
            for before, ours, after in zip(self.bare, self.windlass, self.again, strict=True)
        ]

    def noise(self) -> list[float]:
        return [after / before for before, after in zip(self.bare, self.again, strict=True)]


def measure(folder: Path, server: ServerProcess, *, windows: int) -> Rates:
    home = server.home
    bare = [sys.executable, SCRIPT.name]
    ours = [str(BIN / "windlass"), "run", "--no-snapshot", SCRIPT.name, "accounted"]
    folder.mkdir()
    rates = Rates()
    with (
        running_loop(folder / "bare", bare, home=home) as first,
        running_loop(folder / "windlass", ours, home=home) as under_windlass,
        running_loop(folder / "again", bare, home=home) as second,
    ):
        follower = under_windlass.process.pid  # the command, which shows the lines as they come
        helpers = {*processes_of(home), follower} - {int((under_windlass.folder / "pid").read_text())}
        cpu_before = _cpu_s(helpers)
        for number in range(windows + 1):
            # Which of the bare ones comes first alternates too: a drift of the machine is not a difference.
            before, after = (first, second) if number % 2 else (second, first)
            with paused(home, follower):
                rate_before = before.steps_per_s(WINDOW_S)
            rate = under_windlass.steps_per_s(WINDOW_S)
            with paused(home, follower):
                rate_after = after.steps_per_s(WINDOW_S)
            if number == 0:
                continue  # caches fill
            rates.windlass.append(rate)
            rates.bare.append(rate_before if before is first else rate_after)
            rates.again.append(rate_after if before is first else rate_before)
        # All of them are stopped while a bare one steps, so what they have used was used in the other windows.
        loops = zip(ARMS, (first, under_windlass, second), strict=True)
        rates.cpu_ms_per_step = {arm: statistics.median(loop.cpu_ms_per_step[1:]) for arm, loop in loops}
        rates.cpu_percent = 100 * (_cpu_s(helpers) - cpu_before) / ((windows + 1) * WINDOW_S)
    return rates


def _cpu_s(pids: set[int]) -> float:
    return sum(found.cpu_s for pid in pids if (found := kernel.stat(pid)) is not None)


@contextlib.contextmanager
def paused(home: Path, follower: int) -> Iterator[None]:
    pids = [*processes_of(home), follower]
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def check_record(server: ServerProcess) -> str:
    """The figure counts only if Windlass did its work meanwhile: lines, points and samples are on record."""
    with server.client() as client:
        run = client.get("/api/runs", params={"limit": 1}).raise_for_status().json()["runs"][0]
        view = client.get(f"/api/runs/{run['id']}").raise_for_status().json()
        lines = client.get(f"/api/runs/{run['id']}/logs", params={"tail": 1}).raise_for_status().json()["lines"]
    points, accounted = view["metrics"]["last_loss"]["count"], {"loss", "grad_norm", "step_s", "data_wait_s"}
    whole = f"step {points}:" in lines[-1]["text"] and accounted <= set(view["metrics"]) and view["usage"]
    if view["state"] != "succeeded" or not whole:
        raise RuntimeError(f"the record is not whole: {view['state']}, {points} points, last line {lines}")
    return f"{points} lines and {2 * points} metric points"


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__)
    parser.add_argument("--windows", type=int, help="windows of each trio of processes")
    parser.add_argument("--trios", type=int, help="how often the processes are started anew")
    given = parser.parse_args(arguments)
    windows = given.windows or (24 if given.quick else 60)
    trios = given.trios or (3 if given.quick else 9)
    measured, recorded = [], []
    with workspace() as folder, running_server(folder / "home") as server:
        for number in range(1, trios + 1):
            rates = measure(folder / f"trio-{number}", server, windows=windows)
            measured.append(rates)
            recorded.append(check_record(server))
            tell(
                f"trio {number}/{trios}  windlass over bare: {statistics.median(rates.ratios()):.4f}  "
                f"bare over bare: {statistics.median(rates.noise()):.4f}"
            )
    finish(_report(measured, recorded, windows))
    return 0


def _report(measured: Sequence[Rates], recorded: Sequence[str], windows: int) -> Report:
    rows = []
    for words, groups in (
        ("windlass over bare", [rates.ratios() for rates in measured]),
        ("bare over bare (the method's own error)", [rates.noise() for rates in measured]),
    ):
        least, most = median_interval(groups)
        middle = statistics.median(statistics.median(group) for group in groups)
        rows.append([words, f"{middle:.4f}", f"{least:.4f} to {most:.4f}"])
    value = statistics.median(statistics.median(rates.ratios()) for rates in measured)
    speeds = [
        [words, *(statistics.median(getattr(rates, name)) for rates in measured)]
        for words, name in zip(ARMS, ("bare", "windlass", "again"), strict=True)
    ]
    speeds += [[f"CPU ms/step, {arm}", *(rates.cpu_ms_per_step[arm] for rates in measured)] for arm in ARMS]
    speeds.append(["CPU % of Windlass itself", *(rates.cpu_percent for rates in measured)])
    return Report(
        bench="overhead",
        figures={"steps_ratio": Figure(value=value, target=0.995, better="higher")},
        tables=[
            Table(
                title=f"Steps/s, ratio of neighbouring windows of {WINDOW_S:g} s; {len(measured)} trios of processes, "
                f"{windows} windows each",
                header=("ratio", "median", "95% interval (bootstrap)"),
                rows=rows,
            ),
            Table(
                title="Steps/s and the CPU time of the loop's process, medians of each trio; below, what server, "
                "supervisor and command use of one core",
                header=("arm", *(f"trio {number + 1}" for number in range(len(measured)))),
                rows=speeds,
            ),
        ],
        notes=[
            f"Every step prints a line and logs two metrics; a trio's run left {recorded[-1]} on record, and what "
            "`job.steps` found. Server, controller, supervisor and sampling run as usual while the loop under Windlass "
            "steps, and are stopped (SIGSTOP) while a bare one does. CPU time includes the loader's and the metrics' "
            "threads, which run beside the loop.",
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
