"""How soon does training go on after a rank is killed, and what is lost, against `torchrun --max-restarts`?

Four ranks train the same model on the same batches. At random moments a random one gets SIGKILL; the time counts until
the first step that is new, so that starting, loading and repeating lost steps are all in it. Both arms save to disk
every so many steps; Windlass's ranks leave a copy in the node's memory too, at every step. torchrun runs with the
setting without which it does not come back. The rounds of the arms alternate; in each a whole supervisor is killed as
well, which only the controller can mend, and torchrun has nobody for. At last a longer run has a kill a minute.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also as `python bench/recovery.py`

from bench.harness import BIN, Figure, Report, Table, finish, options, tell, workspace
from windlass.agent import kernel, layout
from windlass.agent.files import read_json
from windlass.agent.ports import free_port
from windlass.client import Client, Run
from windlass.testing.servers import ServerProcess, running_server

SCRIPT = Path(__file__).resolve().parent / "programs" / "recovering.py"
RANKS = 4
_PATIENCE_S = 120.0
_LAUNCHER_S = 8.0  # until it has loaded all that it loads when nobody comes
_BETWEEN_S = 2.0  # a kill comes so long after the last one was got over, and a random while more
T = TypeVar("T")
_AFTER = 20  # steps at the end that nobody disturbs


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    life: int
    number: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    took_s: float  # from the kill to the first new step
    steps_lost: int
    back_s: float  # from the kill to the first step at all


@dataclass(slots=True, kw_only=True)
class Training:
    """One run of the script under either arm: what it has told, and the processes of its ranks."""

    folder: Path
    ranks: Callable[[], list[int]]

    def steps(self) -> list[Step]:
        try:
            lines = (self.folder / "steps").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [Step(life=int(life), number=int(number), at=float(at)) for life, number, at in map(str.split, lines)]

    def end(self) -> str:
        return await_that(lambda: (self.folder / "end").exists() and (self.folder / "end").read_text(), "the end")

    def reach(self, number: int) -> None:
        await_that(lambda: any(step.number >= number for step in self.steps()), f"step {number}")

    def kill(self, pid: int) -> Recovery:
        """One of its processes, and what followed."""
        before = self.steps()[-1]
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)

        def new_life() -> list[Step] | None:
            steps = self.steps()
            last = max(step.number for step in steps if step.life == before.life)
            fresh = [step for step in steps if step.life != before.life and step.at > at]
            return fresh if fresh and fresh[-1].number > last else None

        fresh = await_that(new_life, "the first new step")
        last = max(step.number for step in self.steps() if step.life == before.life)
        return Recovery(
            took_s=next(step.at for step in fresh if step.number > last) - at,
            steps_lost=last - (fresh[0].number - 1),
            back_s=fresh[0].at - at,
        )


def await_that(find: Callable[[], T | bool | None], what: str) -> T:
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := find()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE_S:.0f} s in vain for {what}")
        time.sleep(0.01)
    return found  # type: ignore[return-value]


# ---- the arms --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def under_windlass(
    folder: Path, client: Client, steps: int, expected: str = "succeeded"
) -> Iterator[tuple[Training, Run]]:
    folder.mkdir()
    spec = {
        "name": folder.name,
        "command": ["python", str(SCRIPT), "windlass", str(folder), str(steps)],
        "code": None,
        "workdir": str(folder),
        "nproc": RANKS,
        "resources": {"cpus": 1},
    }
    run = client.submit(spec)
    yield Training(folder=folder, ranks=functools.partial(_ranks_of, run)), run
    run.wait(timeout=_PATIENCE_S)
    if run.state != expected:
        raise RuntimeError(f"the run is {run.state}: {[event.message for event in run.events()]}")


def _status(run: Run) -> dict[str, object]:
    return read_json(os.path.join(run.attempts()[-1].log_dirs[0], layout.STATUS)) or {}


def _ranks_of(run: Run) -> list[int]:
    ranks: list[dict[str, int]] = _status(run)["ranks"]  # type: ignore[assignment]
    return [rank["pid"] for rank in ranks]


@contextlib.contextmanager
def under_torchrun(folder: Path, steps: int) -> Iterator[Training]:
    folder.mkdir()
    port = free_port()
    command = [BIN / "torchrun", "--nproc-per-node", RANKS, "--max-restarts", 1000, "--rdzv-backend", "c10d",
               "--rdzv-endpoint", f"127.0.0.1:{port}", SCRIPT, "torchrun", folder, steps]  # fmt: skip
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(word) for word in command], env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield Training(folder=folder, ranks=lambda: kernel.children(process.pid))
        if process.wait(_PATIENCE_S) != 0:
            raise RuntimeError(f"torchrun exited with {process.returncode}:\n{(folder / 'log').read_text()[-2000:]}")
    finally:
        process.kill()
        process.wait()


# ---- what is measured ------------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, folder: Path, client: Client, seed: int) -> None:
        self._folder = folder
        self._client = client
        self._random = random.Random(seed)
        self._serial = 0

    def place(self, name: str) -> Path:
        self._serial += 1
        return self._folder / f"{name}-{self._serial}"

    def undisturbed(self, steps: int) -> str:
        with under_windlass(self.place("undisturbed"), self._client, steps) as (training, _):
            return training.end()

    def kill_under_windlass(self, kills: int, steps: int) -> tuple[list[Recovery], str]:
        with under_windlass(self.place("windlass"), self._client, steps) as (training, run):
            found = [self.kill_one(training) for _ in range(kills)]
            end = training.end()
        if len(run.attempts()) != 1:
            raise RuntimeError(f"it did not come back in place: {[event.message for event in run.events()]}")
        return found, end

    def kill_under_torchrun(self, kills: int, steps: int) -> list[Recovery]:
        with under_torchrun(self.place("torchrun"), steps) as training:
            found = [self.kill_one(training) for _ in range(kills)]
            training.end()
        return found

    def kill_one(self, training: Training) -> Recovery:
        done = max((step.number for step in training.steps()), default=0)
        training.reach(done + 5)
        time.sleep(_BETWEEN_S * (1 + self._random.random()))
        found = training.kill(self._random.choice(training.ranks()))
        tell(f"  {training.folder.name}: back after {found.took_s:.2f} s, {found.steps_lost} steps lost")
        return found

    def kill_supervisor(self, steps: int) -> tuple[Recovery, str]:
        with under_windlass(self.place("supervisor"), self._client, steps) as (training, run):
            training.reach(30)
            time.sleep(_BETWEEN_S * self._random.random())
            pid = _status(run)["pid"]
            assert isinstance(pid, int)
            found = training.kill(pid)
            tell(f"  {training.folder.name}: back after {found.took_s:.2f} s, {found.steps_lost} steps lost")
            return found, training.end()

    def goodput(self, minutes: int) -> tuple[float, float]:
        """With a kill in the middle of every minute: (new steps at their mean pace over the time, that pace)."""
        folder = self.place("goodput")
        with under_windlass(folder, self._client, 1_000_000, "cancelled") as (training, run):
            training.reach(20)
            begin = training.steps()[-1]
            for minute in range(minutes):
                time.sleep(max(0.0, begin.at + 60 * minute + 30 - time.monotonic()))
                training.kill(self._random.choice(training.ranks()))
            time.sleep(max(0.0, begin.at + 60 * minutes - time.monotonic()))
            steps = [step for step in training.steps() if step.at >= begin.at]
            run.cancel(grace_s=0)
        took = [after.at - one.at for one, after in pairwise(steps) if one.life == after.life]
        usual_s = statistics.fmean(took)
        return (steps[-1].number - begin.number) * usual_s / (steps[-1].at - begin.at), usual_s


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="how often each arm is started")
    parser.add_argument("--kills", type=int, help="in one round")
    given = parser.parse_args(arguments)
    rounds, kills = given.rounds or (2 if given.quick else 5), given.kills or (2 if given.quick else 4)
    minutes = 1 if given.quick else 5
    ours: list[Recovery] = []
    theirs: list[Recovery] = []
    lost: list[Recovery] = []  # whole supervisors
    with workspace() as folder, running_server(folder / "home") as server, _client(server) as client:
        bench = Bench(folder, client, seed=0)
        tell("warming up: the launcher imports torch")
        bench.undisturbed(20)
        time.sleep(_LAUNCHER_S)
        steps = 120 * kills + _AFTER
        expected = bench.undisturbed(steps)
        ends = []
        for number in range(1, rounds + 1):
            tell(f"round {number}/{rounds}")
            found, end = bench.kill_under_windlass(kills, steps)
            ours += found
            ends.append(end)
            theirs += bench.kill_under_torchrun(kills, steps)
            one, end = bench.kill_supervisor(steps)
            lost.append(one)
            ends.append(end)
        tell(f"{minutes} min with a kill a minute")
        goodput, usual_s = bench.goodput(minutes)
    finish(_report(ours, theirs, lost, goodput, usual_s, all(end == expected for end in ends), minutes))
    return 0


@contextlib.contextmanager
def _client(server: ServerProcess) -> Iterator[Client]:
    with Client(url=server.url, token=server.token, home=server.home) as client:
        yield client


def _report(
    ours: list[Recovery],
    theirs: list[Recovery],
    lost: list[Recovery],
    goodput: float,
    usual_s: float,
    equal: bool,
    minutes: int,
) -> Report:
    def row(name: str, found: list[Recovery]) -> list[object]:
        times = [one.took_s for one in found]
        return [
            name, len(found), statistics.median(times), min(times), max(times),
            statistics.median(one.back_s for one in found), max(one.steps_lost for one in found),
        ]  # fmt: skip

    ratio = statistics.median(one.took_s for one in ours) / statistics.median(one.took_s for one in theirs)
    return Report(
        bench="recovery",
        figures={
            "rank_kill_vs_torchrun": Figure(value=ratio, target=0.2, better="lower"),
            "steps_lost": Figure(value=max(one.steps_lost for one in ours + lost), target=1, better="lower"),
            "goodput": Figure(value=goodput, target=0.97, better="higher"),
            "loss_is_equal": Figure(value=float(equal), target=1, better="higher"),
        },
        tables=[
            Table(
                title=f"Seconds from a SIGKILL to the first new step, {RANKS} ranks",
                header=("arm", "kills", "median s", "least", "most", "to any step", "steps lost, most"),
                rows=[
                    row("windlass, a rank (in place)", ours),
                    row("torchrun, a rank", theirs),
                    row("windlass, the supervisor (another attempt)", lost),
                ],
            )
        ],
        notes=[
            f"Goodput over {minutes} min with a kill a minute: new steps times their mean of {1000 * usual_s:.0f} ms, "
            "over the time. What checkpoints cost is in that mean, and a benchmark of its own.",
            "The last loss and all parameters are compared, bit by bit, with those of an undisturbed run.",
            "torchrun has TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; without it, it does not come back. Both save to disk "
            "every 20 steps; torchrun with `dcp.save`. If its agent is killed nobody starts another: its ranks stay, "
            "alone, so a supervisor has no counterpart.",
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
