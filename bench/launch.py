"""How long from the start of the submitting command to the user's first line?

The script imports torch and takes the time; the clock is the machine's, the same for all arms. With several ranks the
slowest counts. Arms alternate within one run, on one machine, with one interpreter.
"""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also as `python bench/launch.py`

from bench.harness import BIN, Figure, Report, Table, alternate, finish, medians, options, tell, workspace
from bench.rayhead import running_ray
from windlass.testing.servers import ServerProcess, running_server

PROGRAMS = Path(__file__).resolve().parent / "programs"
RANKS = (1, 2)
TIMEOUT_S = 180
STAGES = (
    ("the command starts to the server has the run", "submitted"),
    ("to placed", "placed"),
    ("to started", "started"),
    ("to the first line (all ranks)", "line"),
    ("to the first line on the terminal", "shown"),
)


@dataclass(slots=True, kw_only=True)
class Bench:
    folder: Path
    script: Path
    server: ServerProcess
    ray: str
    stages: dict[int, list[dict[str, float]]] = field(default_factory=lambda: {count: [] for count in RANKS})
    serial: int = 0

    def arms(self, ranks: int) -> dict[str, Callable[[], float]]:
        script = str(self.script)
        python = [sys.executable, script]
        torchrun = [str(BIN / "torchrun"), "--nproc-per-node", str(ranks), script]
        ray = [str(BIN / "ray"), "job", "submit", "--address", self.ray, "--"]
        submitit = [sys.executable, str(PROGRAMS / "submitit_launch.py"), str(ranks), script]
        arms: dict[str, Callable[[], float]] = {}
        if ranks == 1:
            arms["python"] = functools.partial(self.measure, python, ranks)
        arms["torchrun"] = functools.partial(self.measure, torchrun, ranks)
        arms["windlass"] = functools.partial(self.measure_windlass, ranks)
        arms["windlass --no-warm"] = functools.partial(self.measure_windlass, ranks, "--no-warm")
        arms["submitit"] = functools.partial(self.measure, submitit, ranks, str(self.folder / "submitit"))
        arms["ray job submit"] = functools.partial(self.measure, [*ray, *(python if ranks == 1 else torchrun)], ranks)
        return arms

    def measure(self, command: Sequence[str], ranks: int, *more: str) -> float:
        """Seconds from starting `command FOLDER MORE...` to the last rank's first line."""
        stamps = self._new_folder()
        began = time.time()
        self._finish(self._start([*command, str(stamps), *more]))
        return _last_stamp(stamps, ranks) - began

    def measure_windlass(self, ranks: int, *flags: str) -> float:
        stamps = self._new_folder()
        command = [str(BIN / "windlass"), "run", "--nproc", str(ranks), *flags, self.script.name, str(stamps)]
        began = time.time()
        process = self._start(command)
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if b"first line" in line:
                break
        shown = time.time()
        self._finish(process, already=b"".join(lines))
        at = _last_stamp(stamps, ranks)
        if not flags:
            self.stages[ranks].append(self._stages(began, at, shown))
        return at - began

    def _stages(self, began: float, line: float, shown: float) -> dict[str, float]:
        with self.server.client() as client:
            run = client.get("/api/runs", params={"limit": 1}).raise_for_status().json()["runs"][0]
            events = client.get(f"/api/runs/{run['id']}/events").raise_for_status().json()["events"]
        placed = next(event["at"] for event in events if event["kind"] == "placed")
        times = [began, run["submitted_at"], placed, run["started_at"], line, shown]
        return {key: at - before for (_, key), before, at in zip(STAGES, times, times[1:], strict=False)}

    def _new_folder(self) -> Path:
        self.serial += 1
        stamps = self.folder / f"stamps-{self.serial}"
        stamps.mkdir()
        return stamps

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "WINDLASS_HOME": str(self.server.home)}
        return subprocess.Popen(
            command,
            env=environ,
            cwd=self.script.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def _finish(self, process: subprocess.Popen[bytes], *, already: bytes = b"") -> None:
        """To its very end: what an arm leaves running must not burden the next."""
        output, _ = process.communicate(timeout=TIMEOUT_S)
        if process.returncode != 0:
            shown = (already + output).decode(errors="replace")
            raise RuntimeError(f"{process.args!r} exited with {process.returncode}:\n{shown}")


def _last_stamp(stamps: Path, ranks: int) -> float:
    found = [float(path.read_text()) for path in stamps.iterdir()]
    if len(found) != ranks:
        raise RuntimeError(f"{len(found)} of {ranks} ranks came to their first line")
    return max(found)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="how often every arm is measured")
    given = parser.parse_args(arguments)
    rounds = given.rounds or (3 if given.quick else 11)
    with workspace() as folder:
        script = _project(folder / "project")
        with running_ray(folder) as ray, running_server(folder / "home") as server:
            bench = Bench(folder=folder, script=script, server=server, ray=ray.jobs)
            tell("warming up: caches, the warm launcher, Ray's first worker")
            for arm in bench.arms(1).values():
                arm()
            bench.measure_windlass(2)
            for stages in bench.stages.values():
                stages.clear()
            measured = {ranks: alternate(bench.arms(ranks), rounds=rounds) for ranks in RANKS}
    finish(_report(measured, bench.stages, rounds))
    return 0


def _project(folder: Path) -> Path:
    """A small project as users have it: under git, with a commit."""
    folder.mkdir()
    script = Path(shutil.copy(PROGRAMS / "first_line.py", folder / "train.py"))
    author = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for command in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "--message", "Begin"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return script


def _report(
    measured: dict[int, dict[str, list[float]]], stages: dict[int, list[dict[str, float]]], rounds: int
) -> Report:
    one, two = medians(measured[1]), medians(measured[2])

    def ratio(times: dict[str, float], peer: str, target: float) -> Figure:
        return Figure(value=times["windlass"] / times[peer], target=target, better="lower")

    rows: list[list[Any]] = [
        [arm, *(_cells(measured[ranks].get(arm)) for ranks in RANKS)] for arm in dict.fromkeys((*one, *two))
    ]
    parts = [
        [words, *(1000 * statistics.median(run[key] for run in stages[ranks]) for ranks in RANKS)]
        for words, key in STAGES
    ]
    return Report(
        bench="launch",
        figures={
            "torchrun_ratio": ratio(two, "torchrun", 0.25),
            "torchrun_ratio_1": ratio(one, "torchrun", 0.25),
            "python_ratio_1": ratio(one, "python", 1.0),
            "submitit_ratio": ratio(two, "submitit", 1.0),
            "ray_ratio": ratio(two, "ray job submit", 1.0),
        },
        tables=[
            Table(
                title=f"From the command's start to the first user line, seconds: median (least to most) of {rounds}",
                header=("arm", "1 rank", "2 ranks"),
                rows=rows,
            ),
            Table(
                title="Where the time goes with a warm launcher, milliseconds, medians",
                header=("stage", "1 rank", "2 ranks"),
                rows=parts,
            ),
        ],
        notes=[
            "The script takes the time right after `import torch`; with two ranks the slower one counts. The whole "
            "submitting command is in the figure: the real CLI, submitit's Python process, `ray job submit`.",
            "`windlass`: server and warm launcher run, as they do from the second run on. `windlass --no-warm`: a "
            "fresh interpreter per rank. Ray: a head that has run jobs before; two ranks are `torchrun` as its "
            "entrypoint. submitit: LocalExecutor, the script inside its task processes.",
        ],
    )


def _cells(times: list[float] | None) -> str:
    return f"{statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f})" if times else ""


if __name__ == "__main__":
    sys.exit(main())
