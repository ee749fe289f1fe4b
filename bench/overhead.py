"""How many steps a second does a training loop make under Windlass with all accounting on, over the same loop bare?

One process of the script runs under Windlass and steps in short windows, now with everything (`job.loader`,
`job.steps`, `job.log`, its output read by the supervisor and followed by a command), now with nothing of it. While it
steps bare, server, supervisor and command are stopped. Windows come in rounds, each in an order of its own, and are
compared within their round; a second bare window of each round, over the first, shows what the method cannot tell
apart. Beside steps a second there is the CPU time of the loop's thread, and that of its parts which are not computing:
on a machine with other work these are still told apart when the clock is not. A bare process that Windlass has not
started steps in every round too, which shows what the launch itself makes of a loop; processes differ by some percent,
whoever starts them, so that this takes many of them.

A window begins with steps that do not count: caches fill, and processes that were stopped catch up with their clocks.

Three settings: a step of some 6 ms, the hard case; one of 60 ms, as real ones are; and 6 ms with all other cores busy,
so that Windlass has none to itself. In the first two the loop has one thread, as the host's side of a GPU job has. How
many micro-batches make such a step on this machine is found out first. With `--setting gpu`, on a machine that has one,
a step is some 60 ms of products on it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also as `python bench/overhead.py`

from bench.harness import BIN, Figure, Report, Table, finish, options, tell, workspace
from bench.pairs import Verdict, decide_verdict, ratio_of
from windlass.agent import kernel
from windlass.testing.servers import ServerProcess, processes_of, running_server

SCRIPT = Path(__file__).resolve().parent / "programs" / "training_loop.py"
TARGET = 0.995
SETTLE_S = 0.2
WINDOW_S = 0.6
_PATIENCE_S = 120.0


class Setting(NamedTuple):
    name: str
    words: str
    micro_batches: int  # of a step; on a CPU of one that is timed
    step_ms: float | None = None
    crowded: bool = False
    device: str = "cpu"


SETTINGS = (
    Setting("6ms", "a step of 6 ms", 16, step_ms=6),
    Setting("60ms", "a step of 60 ms", 16, step_ms=60),
    Setting("crowded", "a step of 6 ms, all other cores busy", 16, step_ms=6, crowded=True),
    Setting("gpu", "a step of 60 ms on a GPU", 8, device="cuda"),
)


class Window(NamedTuple):
    steps: int
    took_s: float
    loop_cpu_s: float  # of the loop's own thread
    cpu_s: float  # of its process
    beside_s: float  # of the loop's own thread, in all that is not computing

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.took_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One process of the script, and the two ends of its pipes that are ours."""

    folder: Path
    process: subprocess.Popen[bytes]
    go: TextIO
    done: TextIO

    def step(self, arm: str) -> Window:
        for window_s in (SETTLE_S, WINDOW_S):
            self.go.write(f"{arm} {window_s}\n")
            self.go.flush()
            steps, *seconds = self.done.readline().split()
        return Window(int(steps), *map(float, seconds))

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())


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
class Start:
    """The windows of one start of the processes, by round."""

    windlass: list[Window] = field(default_factory=list)
    bare: list[Window] = field(default_factory=list)  # the same process, with nothing on
    again: list[Window] = field(default_factory=list)
    other: list[Window] = field(default_factory=list)  # a bare process
    cpu_percent: float = 0.0  # of everything of Windlass but the loop's process, while the loop steps with it

    def speed(self) -> list[float]:
        return [
            ours.steps_per_s / statistics.fmean((one.steps_per_s, two.steps_per_s))
            for ours, one, two in zip(self.windlass, self.bare, self.again, strict=True)
        ]

    def cpu(self) -> list[float]:
        """The CPU time of the loop's thread, bare over ours: what a free core does not give back."""
        return [
            statistics.fmean((_loop_ms(one), _loop_ms(two))) / _loop_ms(ours)
            for ours, one, two in zip(self.windlass, self.bare, self.again, strict=True)
        ]

    def noise(self) -> list[float]:
        return [two.steps_per_s / one.steps_per_s for one, two in zip(self.bare, self.again, strict=True)]

    def cpu_noise(self) -> list[float]:
        return [_loop_ms(two) / _loop_ms(one) for one, two in zip(self.bare, self.again, strict=True)]

    def direct(self) -> list[float]:
        """As if a step took longer by what batches, lines and metrics take more of the loop's thread, and by nothing
        else. Told where all else drowns in noise: it is measured where it happens."""
        step_ms = statistics.median(map(_loop_ms, (*self.bare, *self.again)))
        return [
            step_ms / (step_ms + _told_ms(ours) - statistics.fmean((_told_ms(one), _told_ms(two))))
            for ours, one, two in zip(self.windlass, self.bare, self.again, strict=True)
        ]

    def direct_noise(self) -> list[float]:
        step_ms = statistics.median(map(_loop_ms, (*self.bare, *self.again)))
        return [
            step_ms / (step_ms + _told_ms(two) - _told_ms(one)) for one, two in zip(self.bare, self.again, strict=True)
        ]

    def whole(self) -> list[float]:
        return [ours.steps_per_s / other.steps_per_s for ours, other in zip(self.windlass, self.other, strict=True)]


def _loop_ms(window: Window) -> float:
    return 1000 * window.loop_cpu_s / window.steps


def _told_ms(window: Window) -> float:
    return 1000 * window.beside_s / window.steps


def _beside_ms(window: Window) -> float:
    return 1000 * (window.cpu_s - window.loop_cpu_s) / window.steps


def sized(folder: Path, settings: Sequence[Setting]) -> list[Setting]:
    """With as many micro-batches as make a step of that length here."""
    found = []
    for setting in settings:
        micro_batches = setting.micro_batches
        if setting.step_ms is not None:
            script = [sys.executable, SCRIPT.name, setting.device, str(micro_batches)]
            with running_loop(folder / f"{setting.name}-sizing", script, home=folder) as loop:
                micro_batches = round(micro_batches * setting.step_ms / _loop_ms(loop.step("bare")))
        found.append(setting._replace(micro_batches=micro_batches))
    return found


def measure(folder: Path, server: ServerProcess, setting: Setting, *, rounds: int) -> Start:
    home = server.home
    script = [SCRIPT.name, setting.device, str(setting.micro_batches)]
    launch = [str(BIN / "windlass"), "run", "--no-snapshot", *(["--gpus", "1"] if setting.device == "cuda" else [])]
    folder.mkdir()
    found = Start()
    order = random.Random(len(folder.name))
    with (
        running_loop(folder / "windlass", [*launch, *script], home=home) as loop,
        running_loop(folder / "bare", [sys.executable, *script], home=home) as other,
        busy_cores((os.cpu_count() or 1) - 1 if setting.crowded else 0),
    ):
        windows = [
            ("windlass", loop, found.windlass),
            ("bare", loop, found.bare),
            ("bare", loop, found.again),
            ("bare", other, found.other),
        ]
        helpers = {*processes_of(home), loop.process.pid} - {loop.pid}
        cpu_before_s = _cpu_s(helpers)
        for number in range(rounds + 1):
            for arm, process, kept in order.sample(windows, len(windows)):
                with contextlib.nullcontext() if arm == "windlass" else stopped(helpers):
                    window = process.step(arm)
                if number > 0:
                    kept.append(window)
        # All of them are stopped while a bare loop steps, so what they have used was used in the other windows.
        found.cpu_percent = 100 * (_cpu_s(helpers) - cpu_before_s) / ((rounds + 1) * (SETTLE_S + WINDOW_S))
    return found


def _cpu_s(pids: set[int]) -> float:
    return sum(found.cpu_s for pid in pids if (found := kernel.stat(pid)) is not None)


@contextlib.contextmanager
def stopped(pids: set[int]) -> Iterator[None]:
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


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
    parser.add_argument("--rounds", type=int, help="of windows, of each start of the processes")
    parser.add_argument("--starts", type=int, help="how often the processes are started anew")
    parser.add_argument("--setting", action="append", choices=[setting.name for setting in SETTINGS])
    given = parser.parse_args(arguments)
    rounds = given.rounds or (15 if given.quick else 40)
    starts = given.starts or (2 if given.quick else 5)
    wanted = given.setting or [setting.name for setting in SETTINGS if setting.device == "cpu"]
    recorded = ""
    with workspace() as folder, running_server(folder / "home") as server:
        settings = sized(folder, [setting for setting in SETTINGS if setting.name in wanted])
        measured: dict[Setting, list[Start]] = {setting: [] for setting in settings}
        for number in range(1, starts + 1):
            for setting in settings:
                found = measure(folder / f"{setting.name}-{number}", server, setting, rounds=rounds)
                measured[setting].append(found)
                recorded = check_record(server)
                tell(f"start {number}/{starts}, {setting.words}: {ratio_of([found.speed()], draws=200)}")
    finish(_report(measured, recorded, rounds))
    return 0


def _report(measured: dict[Setting, list[Start]], recorded: str, rounds: int) -> Report:
    figures, rows, costs = {}, [], []
    for setting, starts in measured.items():
        for name, words, ratio, noise in (
            ("steps", "steps/s", [one.speed() for one in starts], [one.noise() for one in starts]),
            ("cpu", "CPU of the loop's thread", [one.cpu() for one in starts], [one.cpu_noise() for one in starts]),
            (
                "direct",
                "CPU of batches, lines, metrics",
                [one.direct() for one in starts],
                [one.direct_noise() for one in starts],
            ),
        ):
            found, error = ratio_of(ratio), ratio_of(noise)
            verdict = decide_verdict(found, error, target=TARGET)
            rows.append([setting.words, words, str(found), str(error), verdict.value])
            if verdict is not Verdict.CANNOT_TELL:
                figures[f"{name}_ratio_{setting.name}"] = Figure(value=found.value, target=TARGET, better="higher")
        whole = ratio_of([one.whole() for one in starts])
        rows.append([setting.words, "steps/s over a bare process", str(whole), "", ""])
        costs.append(_costs(setting, starts))
    times = f"{len(next(iter(measured.values())))} starts of {rounds} rounds"
    return Report(
        bench="overhead",
        figures=figures,
        tables=[
            Table(
                title=f"With Windlass over without, neighbouring windows of {WINDOW_S:g} s, trimmed means and their "
                f"95% intervals; {times}. The target is {TARGET}",
                header=("setting", "ratio of", "with over without", "without over without", "target"),
                rows=rows,
            ),
            Table(
                title="Medians: CPU time of a step in microseconds; what server, supervisor and command use of a core",
                header=(
                    "setting",
                    "loop, without",
                    "loop, with",
                    "all but computing, without",
                    "the same, with",
                    "other threads, with",
                    "helpers, % of a core",
                ),
                rows=costs,
            ),
        ],
        notes=[
            f"Every step prints a line and logs two metrics; a run left {recorded} on record, and what `job.steps` "
            'found. A ratio whose interval reaches over the target is no figure, nor is one beside a "without over '
            'without" that the target cannot be told from.',
        ],
    )


def _costs(setting: Setting, starts: Sequence[Start]) -> list[object]:
    bare = [_loop_ms(window) for start in starts for window in (*start.bare, *start.again)]
    ours = [_loop_ms(window) for start in starts for window in start.windlass]
    told_bare = [_told_ms(window) for start in starts for window in (*start.bare, *start.again)]
    told = [_told_ms(window) for start in starts for window in start.windlass]
    beside = [_beside_ms(window) for start in starts for window in start.windlass]
    return [
        setting.words,
        *(1000 * statistics.median(some) for some in (bare, ours, told_bare, told, beside)),
        statistics.median(start.cpu_percent for start in starts),
    ]


if __name__ == "__main__":
    sys.exit(main())
