"""What does a call of `job.log` cost the training that makes it?

Processes log as ranks do, into folders of their own: one without a pause, one that makes 100 steps a second and sleeps
or computes between them, and 50 at once. What is in no cache after a pause is most of a call's cost, so there are
calls of 20 metrics and of 3. With more processes than cores, most of a slow call is somebody else's turn: calls in
which the kernel gave the core away are therefore counted apart, and the CPU time of every call is beside the clock's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also as `python bench/joblog.py`

from bench.harness import Figure, Report, Table, finish, options, percentile, tell, workspace

SCRIPT = Path(__file__).resolve().parent / "programs" / "log_calls.py"
TARGET_US = 50.0
_PATIENCE_S = 600.0


class Setting(NamedTuple):
    name: str
    words: str
    processes: int
    steps_per_s: float
    metrics: int
    pause: str = "sleep"


SETTINGS = (
    Setting("busy", "one process, without a pause", 1, 0.0, 20),
    Setting("three", "one process, 100 steps/s, sleeps", 1, 100.0, 3),
    Setting("one", "one process, 100 steps/s, sleeps", 1, 100.0, 20),
    Setting("three_computing", "one process, 100 steps/s, computes", 1, 100.0, 3, "work"),
    Setting("computing", "one process, 100 steps/s, computes", 1, 100.0, 20, "work"),
    Setting("fifty", "50 processes, 100 steps/s each, sleep", 50, 100.0, 20),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    wall_us: Sequence[float]
    own_us: Sequence[float]  # of those that kept their core
    cpu_us: Sequence[float]

    @property
    def lost_share(self) -> float:
        return 1 - len(self.own_us) / len(self.wall_us)


def measure(folder: Path, setting: Setting, *, steps: int) -> Calls:
    folder.mkdir()
    running = []
    for number in range(setting.processes):
        node = folder / f"node-{number}"
        node.mkdir()
        environ = {**os.environ, "WINDLASS_NODE_DIR": str(node), "WINDLASS_RUN_ID": f"r-{number}"}
        said = (steps, setting.steps_per_s, setting.metrics, setting.pause, node / "calls.json")
        command = [sys.executable, str(SCRIPT), *map(str, said)]
        running.append(subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL))
    try:
        for process in running:
            if process.wait(_PATIENCE_S) != 0:
                raise RuntimeError(f"{process.args!r} exited with {process.returncode}")
    finally:
        for process in running:
            process.kill()
            process.wait()
    calls = [
        call
        for number in range(setting.processes)
        for call in json.loads((folder / f"node-{number}" / "calls.json").read_text())
    ]
    return Calls(
        wall_us=[wall for wall, _, _ in calls],
        own_us=[wall for wall, _, lost in calls if not lost],
        cpu_us=[cpu for _, cpu, _ in calls],
    )


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, help="of each process")
    given = parser.parse_args(arguments)
    steps = given.steps or (1_000 if given.quick else 3_000)
    rows: list[list[object]] = []
    figures = {}
    with workspace() as folder:
        for setting in SETTINGS:
            found = measure(folder / setting.name, setting, steps=steps)
            wall, own, cpu = (percentile(values, 0.99) for values in (found.wall_us, found.own_us, found.cpu_us))
            middle = percentile(found.wall_us, 0.5)
            rows.append([setting.words, setting.metrics, middle, wall, own, cpu, f"{100 * found.lost_share:.1f}%"])
            what = f"{setting.words}, {setting.metrics} metrics"
            tell(f"{what}: p50 {middle:.1f}, p99 {wall:.1f}, CPU p99 {cpu:.1f} microseconds")
            figures[f"log_cpu_p99_us_{setting.name}"] = Figure(value=cpu, target=TARGET_US, better="lower")
            figures[f"log_p99_us_{setting.name}"] = Figure(value=wall, target=TARGET_US, better="lower")
    header = ("setting", "metrics", "p50", "p99", "p99, core kept", "p99 of CPU time", "core lost")
    table = Table(title=f"A call of `job.log`, microseconds; {steps} calls a process", header=header, rows=rows)
    finish(Report(bench="joblog", figures=figures, tables=[table]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
