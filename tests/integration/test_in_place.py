"""Ranks that die start again within their attempt: what they find, what is on record, what is left of the dead."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.local_runs import LocalRuns, is_running, wait_for
from windlass.core.exits import ExitReason
from windlass.engines.contract import InPlace, Phase, StopKind

IN_PLACE = InPlace(most=3, errors_too=False, key="k")
ERRORS_TOO = InPlace(most=3, errors_too=True, key="k")

# Tells steps as `windlass.job` does, and waits to be killed in its first life.
STEPS = """
import os, sys, time
sys.path.insert(0, {source!r})
from windlass.agent.progress import ProgressFile
progress = ProgressFile(os.path.join(os.environ["WINDLASS_NODE_DIR"], "progress-" + os.environ["RANK"]))
generation = int(os.environ["WINDLASS_GENERATION"])
print("generation", generation, "port", os.environ["MASTER_PORT"], "fds", len(os.listdir("/proc/self/fd")),
      "warm", "quickmodule" in sys.modules and sys.modules["quickmodule"].loaded_in != os.getpid(), flush=True)
if generation:
    progress.restored(2, 0.25)
for step in range(3 if generation else 1, 4 if generation else 4):
    progress.stepped(step)
if not generation:
    sys.stderr.write("no end of line")
    sys.stderr.flush()
    print("waiting", flush=True)
    time.sleep(600)
progress.stepped(4)
"""
SOURCE = str(Path(__file__).resolve().parents[2] / "src")


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path, preimport=("quickmodule",))
    yield runs
    runs.clean_up()


def kill_rank(runs: LocalRuns, attempt: str, rank: int, number: int = signal.SIGKILL) -> None:
    pids = {found["rank"]: found["pid"] for found in runs.status(attempt)["ranks"]}
    os.kill(pids[rank], number)


def recoveries(runs: LocalRuns, attempt: str) -> list[dict[str, Any]]:
    return list(runs.look(attempt).recoveries)  # type: ignore[arg-type]


@pytest.mark.parametrize("warm", [False, True])
def test_all_ranks_start_again_when_one_is_killed(runs: LocalRuns, warm: bool) -> None:
    if warm:
        runs.make_warm("quickmodule")
    script = runs.script("train.py", ("import quickmodule\n" if warm else "") + STEPS.format(source=SOURCE))
    attempt = runs.start("python", script, workers=2, in_place=IN_PLACE, env=runs.warm_env)
    for rank in (0, 1):
        runs.wait_for_text(attempt, "waiting", rank=rank)
    before = runs.status(attempt)
    kill_rank(runs, attempt, 1)
    seen = runs.wait(attempt)

    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED
    assert runs.status(attempt)["pid"] == before["pid"]
    for rank in (0, 1):
        lines = runs.output(attempt, rank=rank).decode().splitlines()
        first, second = (line.split() for line in lines if line.startswith("generation"))
        assert (first[1], second[1]) == ("0", "1")
        assert first[3] != second[3]  # the port
        assert first[7] == second[7] == str(warm)
        assert first[5] == second[5]  # nothing of the supervisor's is open in it
        errors = runs.output(attempt, rank=rank, stream="e").decode().splitlines()
        assert errors[0] == "no end of line"
        assert errors[1].startswith("[windlass] rank 1 was killed by SIGKILL; all ranks start again, generation 1")
    (entry,) = seen.recoveries
    assert (entry["level"], entry["generation"], entry["rank"], entry["reason"]) == (1, 1, 1, "signal")
    assert (entry["step"], entry["restored_step"], entry["steps_lost"]) == (3, 2, 1)
    assert entry["load_s"] == 0.25
    assert all(entry[name] >= 0 for name in ("detect_s", "decide_s", "respawn_s", "replay_s"))


def test_who_never_gets_further_is_left_to_the_controller(runs: LocalRuns) -> None:
    script = runs.script("dies.py", "import os, signal\nprint('life')\nos.kill(os.getpid(), signal.SIGKILL)\n")
    attempt = runs.start("python", script, in_place=IN_PLACE)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert (seen.exit.reason, seen.exit.signal) == (ExitReason.SIGNAL, signal.SIGKILL)
    assert runs.output(attempt) == b"life\nlife\n"  # it told no steps, so one more try is all it gets
    assert [entry["generation"] for entry in seen.recoveries] == [1]


@pytest.mark.parametrize(("in_place", "lives"), [(IN_PLACE, 1), (ERRORS_TOO, 2), (None, 1)])
def test_a_programs_own_failure_is_tried_again_once_if_it_had_come_further(
    runs: LocalRuns, in_place: InPlace | None, lives: int
) -> None:
    text = STEPS.format(source=SOURCE).replace("time.sleep(600)", "raise ValueError('spoilt')")
    text = text.replace("progress.stepped(4)", "raise ValueError('spoilt')")
    attempt = runs.start("python", runs.script("fails.py", text), in_place=in_place)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.EXIT_CODE
    assert runs.output(attempt).count(b"generation") == lives


def test_a_saver_finishes_what_it_writes_and_other_children_of_the_dead_do_not(runs: LocalRuns, tmp_path: Path) -> None:
    saver = (
        "import sys, time\nname = 'windlass.job.checkpoint.saver'\n"
        "while not __import__('os').path.exists(sys.argv[1] + '.go'): time.sleep(0.01)\n"
        "open(sys.argv[1], 'w').write('whole')"
    )
    script = runs.script(
        "parent.py",
        f"""
import os, subprocess, sys, time
if os.environ["WINDLASS_GENERATION"] == "0":
    done = {str(tmp_path / "done")!r}
    subprocess.Popen([sys.executable, "-c", {saver!r}, done], start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("other", other.pid, flush=True)
    time.sleep(600)
print("second life", flush=True)
while not os.path.exists({str(tmp_path / "done")!r}):
    time.sleep(0.01)
""",
    )
    attempt = runs.start("python", script, in_place=IN_PLACE)
    runs.wait_for_text(attempt, " o other ")
    other = int(runs.output(attempt).split()[1])
    kill_rank(runs, attempt, 0)
    runs.wait_for_text(attempt, "second life")
    assert not is_running(other)
    (tmp_path / "done.go").touch()
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED
    assert (tmp_path / "done").read_text() == "whole"
    assert runs.processes() == []


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path, nodes=2)
    yield runs
    runs.clean_up()


@pytest.mark.parametrize("node", [0, 1])
def test_a_gang_starts_again_on_all_nodes(gang: LocalRuns, node: int) -> None:
    script = gang.script("train.py", STEPS.format(source=SOURCE))
    attempt = gang.start("python", script, workers=2, in_place=IN_PLACE)
    for rank in range(4):
        wait_for(lambda rank=rank: "waiting" in gang.log(attempt, rank=rank, node=rank // 2), f"rank {rank}")  # type: ignore[misc]
    wait_for(lambda: _is_on_the_line(gang, attempt), "the second node to call the first")
    os.kill(gang.status(attempt, node)["ranks"][1]["pid"], signal.SIGKILL)
    seen = gang.wait(attempt)

    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED, seen.exit
    lives = [
        [line.split()[1:4:2] for line in gang.output(attempt, rank=rank, node=rank // 2).decode().splitlines()[::2]]
        for rank in range(4)
    ]
    (first, second), *others = lives
    assert all(other == [first, second] for other in others)  # generations and ports
    assert (first[0], second[0]) == ("0", "1")
    assert first[1] != second[1]
    (entry,) = seen.recoveries
    assert (entry["rank"], entry["node"], entry["steps_lost"]) == (2 * node + 1, f"local-{node}", 1)


def test_a_node_that_only_misses_its_peers_starts_again_with_them(gang: LocalRuns, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    text = STEPS.format(source=SOURCE).replace(
        "time.sleep(600)",
        f"""while os.environ["NODE_RANK"] == "1" or not os.path.exists({str(gone)!r}):
        time.sleep(0.01)
    raise RuntimeError("Connection closed by peer")""",
    )
    # The first node's rank is gone before the one that it misses, and doubts why: should the doubt end before the
    # second one is killed, it is for both to start again too.
    attempt = gang.start("python", gang.script("train.py", text), in_place=ERRORS_TOO)
    for rank in range(2):
        wait_for(lambda rank=rank: "waiting" in gang.log(attempt, rank=rank, node=rank), f"rank {rank}")  # type: ignore[misc]
    wait_for(lambda: _is_on_the_line(gang, attempt), "the second node to call the first")
    missing, missed = (gang.status(attempt, node)["ranks"][0]["pid"] for node in (0, 1))
    gone.touch()
    wait_for(lambda: not is_running(missing), "the first to end")
    os.kill(missed, signal.SIGKILL)
    seen = gang.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED, seen.exit
    assert [entry["generation"] for entry in seen.recoveries] == [1]


def test_a_gang_without_one_of_its_nodes_is_left_to_the_controller(gang: LocalRuns) -> None:
    script = gang.script("sleeps.py", "import time\nprint('life', flush=True)\ntime.sleep(600)\n")
    attempt = gang.start("python", script, in_place=IN_PLACE)
    for rank in range(2):
        wait_for(lambda rank=rank: "life" in gang.log(attempt, rank=rank, node=rank), f"rank {rank}")  # type: ignore[misc]
    wait_for(lambda: _is_on_the_line(gang, attempt), "the second node to call the first")
    os.kill(gang.status(attempt, 1)["pid"], signal.SIGKILL)
    wait_for(lambda: gang.status(attempt)["off_line"] == [1], "the first node to notice")
    os.kill(gang.status(attempt, 0)["ranks"][0]["pid"], signal.SIGKILL)
    seen = gang.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.LOST
    assert seen.recoveries == ()
    assert gang.processes() == []


def _is_on_the_line(gang: LocalRuns, attempt: str) -> bool:
    return gang.status(attempt).get("off_line") == []


@pytest.mark.parametrize("kind", [StopKind.CANCELLED, StopKind.PREEMPTED])
def test_ranks_of_a_later_generation_are_stopped_like_the_first(runs: LocalRuns, kind: StopKind) -> None:
    script = runs.script("sleeps.py", "import time\nprint('life', flush=True)\ntime.sleep(600)\n")
    attempt = runs.start("python", script, workers=2, in_place=IN_PLACE)
    runs.wait_for_text(attempt, "life", rank=1)
    kill_rank(runs, attempt, 0)
    wait_for(lambda: runs.output(attempt, rank=1).count(b"life") == 2, "the second life")
    runs.engine.stop(attempt, grace_s=5, kind=kind)
    seen = runs.wait(attempt, Phase.ENDED)
    assert seen.exit is not None
    assert seen.exit.reason.value == kind.value
    assert runs.processes() == []


def test_savers_at_the_end_have_their_time_but_no_more_than_the_grace(runs: LocalRuns) -> None:
    saver = "import time\nname = 'windlass.job.checkpoint.saver'\ntime.sleep(600)"
    script = runs.script(
        "leaves.py",
        f"import subprocess, sys\nsubprocess.Popen([{sys.executable!r}, '-c', {saver!r}], start_new_session=True)\n"
        "print('gone', flush=True)\nsys.exit(3)\n",
    )
    attempt = runs.start("python", script, grace_s=0.5)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.exit_code == 3
    assert runs.processes() == []
