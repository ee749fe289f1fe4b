"""kill -9 of every process there is: the right reason, no orphans, nothing run twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local_runs import LocalRuns, is_running, wait_for
from windlass.core.clock import SystemClock
from windlass.core.exits import ExitReason
from windlass.engines.contract import Phase

# Leaves a child, a grandchild whose parent is gone, and one in a session of its own. Prints their pids.
FAMILY = """
import os, subprocess, sys, time
children = [subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sleep", "600"], start_new_session=True)]
if os.fork() == 0:
    if os.fork():
        os._exit(0)
    os.setsid()
    print("own", os.getpid(), flush=True)
    time.sleep(600)
print("children", *[child.pid for child in children], flush=True)
time.sleep(600)
"""
SLOW_MODULE = "import os, time\nopen(os.environ['PYTHONPATH'] + '/importing', 'w').close()\ntime.sleep(600)\n"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path, preimport=("quickmodule", "slowmodule"))
    yield runs
    runs.clean_up()
    assert runs.processes() == []


def family(runs: LocalRuns, attempt: str) -> list[int]:
    wait_for(lambda: {"own", "children"} <= set(runs.output_words(attempt)), "the whole family")
    return [int(word) for word in runs.output_words(attempt) if word.isdigit()]


def test_a_killed_rank(runs: LocalRuns) -> None:
    attempt = runs.start("python", runs.script("family.py", FAMILY))
    pids = family(runs, attempt)
    os.kill(runs.status(attempt)["ranks"][0]["pid"], signal.SIGKILL)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert (exit.reason, exit.signal, exit.rank) == (ExitReason.SIGNAL, signal.SIGKILL, 0)
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("warm", [False, True])
def test_a_killed_supervisor(runs: LocalRuns, warm: bool) -> None:
    script = runs.script("family.py", ("import quickmodule\n" if warm else "") + FAMILY)
    if warm:
        runs.make_warm("quickmodule")
    attempt = runs.start("python", script, env=runs.warm_env if warm else {})
    pids = family(runs, attempt)
    assert len(pids) == 3
    os.kill(runs.status(attempt)["pid"], signal.SIGKILL)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.LOST
    assert seen.started_at is not None
    assert not any(map(is_running, pids))
    assert runs.processes() == []
    assert runs.outcome(attempt)["reason"] == "lost"


def test_a_lost_attempt_is_not_started_again(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "echo started; sleep 600")
    runs.wait_for_text(attempt, "started")
    os.kill(runs.status(attempt)["pid"], signal.SIGKILL)
    runs.launch_again(attempt)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.LOST
    assert runs.output(attempt) == b"started\n"


def test_killed_launchers_harm_nobody(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "echo started; sleep 0.5; echo finished")
    runs.wait_for_text(attempt, "started")
    for launcher in runs.launchers():
        os.kill(launcher["pid"], signal.SIGKILL)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.COMPLETED
    assert runs.output(attempt) == b"started\nfinished\n"
    after = runs.run("true").exit
    assert after is not None
    assert after.reason is ExitReason.COMPLETED


def test_a_launcher_killed_while_importing(runs: LocalRuns, tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "slowmodule.py").write_text(SLOW_MODULE)
    script = runs.script("slow.py", "if False:\n    import slowmodule\nprint('ran')\n")
    attempt = runs.start("python", script, env={"PYTHONPATH": str(modules)})
    wait_for((modules / "importing").exists, "the import to begin")
    assert runs.look(attempt).phase is Phase.STARTING
    (launcher,) = [launcher for launcher in runs.launchers() if launcher["interpreter"]]
    os.kill(launcher["pid"], signal.SIGKILL)
    wait_for(lambda: runs.look(attempt).phase is Phase.ABSENT, "the engine to notice")
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.COMPLETED
    assert runs.output(attempt) == b"ran\n"


def test_a_new_engine_adopts_what_runs_and_reads_what_ended(runs: LocalRuns) -> None:
    ended = runs.start("/bin/sh", "-c", "exit 4")
    runs.wait(ended)
    running = runs.start("/bin/sh", "-c", "echo started; sleep 600")
    runs.wait_for_text(running, "started")
    runs.engine.close()
    runs.engine = runs.open_engine(SystemClock())
    assert runs.look(running).phase is Phase.RUNNING
    exit = runs.look(ended).exit
    assert exit is not None
    assert exit.exit_code == 4
    runs.engine.stop(running, grace_s=5.0)
    assert runs.wait(running).exit is not None


def test_a_supervisor_that_dies_while_no_engine_looks(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "echo started; sleep 600")
    runs.wait_for_text(attempt, "started")
    runs.engine.close()
    os.kill(runs.status(attempt)["pid"], signal.SIGKILL)
    runs.engine = runs.open_engine(SystemClock())
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.LOST


def test_a_plan_that_nobody_was_asked_to_run_is_launched_again(runs: LocalRuns) -> None:
    """The server died between writing the plan and handing it over."""
    attempt = runs.start("/bin/sh", "-c", "echo started")
    runs.wait(attempt)
    for name in ("outcome.json", "status.json", "rank-0.log"):
        (runs.node_dir(attempt) / name).unlink()
    runs.engine.close()
    runs.engine = runs.open_engine(SystemClock())
    assert runs.look(attempt).phase is Phase.ABSENT
    runs.wait(attempt)
    assert runs.output(attempt) == b"started\n"


def test_sigterm_from_elsewhere_is_no_cancellation(runs: LocalRuns) -> None:
    attempt = runs.start("/bin/sh", "-c", "echo started; sleep 600")
    runs.wait_for_text(attempt, "started")
    os.kill(runs.status(attempt)["pid"], signal.SIGTERM)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.PREEMPTED


class TestTwoNodes:
    @pytest.fixture
    def runs(self, tmp_path: Path) -> Iterator[LocalRuns]:
        runs = LocalRuns(tmp_path, nodes=2)
        yield runs
        runs.clean_up()
        assert runs.processes() == []

    def test_ranks_count_through(self, runs: LocalRuns) -> None:
        text = "import os; print(*[os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'GROUP_RANK', 'MASTER_PORT')])"
        attempt = runs.start("python", runs.script("place.py", text), workers=2)
        exit = runs.wait(attempt).exit
        assert exit is not None
        assert exit.reason is ExitReason.COMPLETED
        words = [runs.output(attempt, rank=rank, node=rank // 2).split() for rank in range(4)]
        assert [word[:3] for word in words] == [
            [b"0", b"4", b"0"],
            [b"1", b"4", b"0"],
            [b"2", b"4", b"1"],
            [b"3", b"4", b"1"],
        ]
        assert len({word[3] for word in words}) == 1

    def test_one_failing_node_stops_the_other(self, runs: LocalRuns) -> None:
        attempt = runs.start("/bin/sh", "-c", 'echo started; if [ "$NODE_RANK" = 1 ]; then exit 9; fi; sleep 600')
        exit = runs.wait(attempt).exit
        assert exit is not None
        assert (exit.reason, exit.exit_code, exit.rank) == (ExitReason.EXIT_CODE, 9, 1)
        assert runs.outcome(attempt, 0)["reason"] == "cancelled"

    def test_a_killed_supervisor_takes_the_other_node_with_it(self, runs: LocalRuns) -> None:
        attempt = runs.start("/bin/sh", "-c", "echo started; sleep 600")
        runs.wait(attempt, Phase.RUNNING)
        os.kill(runs.status(attempt, 0)["pid"], signal.SIGKILL)
        exit = runs.wait(attempt).exit
        assert exit is not None
        assert exit.reason is ExitReason.LOST
        assert runs.outcome(attempt, 1)["reason"] == "cancelled"

    def test_cancelling_cancels_all(self, runs: LocalRuns) -> None:
        attempt = runs.start("/bin/sh", "-c", "echo started; sleep 600")
        runs.wait(attempt, Phase.RUNNING)
        runs.engine.stop(attempt, grace_s=5.0)
        exit = runs.wait(attempt).exit
        assert exit is not None
        assert exit.reason is ExitReason.CANCELLED
