"""Programs that end with code 0 after they were warned: whose work was done before has completed, others were stopped
and go on later. With real processes.
"""

from __future__ import annotations

import pytest

from tests.integration.local_runs import LocalRuns, is_running, wait_for
from windlass.engines.contract import StopKind

# Ranks tell steps as training loops do, and `finished` as `job.checkpoints` does when its block is over.
PROGRAM = """
import os, signal, sys
from windlass.job.session import session
story = sys.argv[1 + int(os.environ["RANK"])]
if "heeds" in story:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if "stepped" in story:
    session().stepped(3)
if "finished" in story:
    session().finished()
print("ready", flush=True)
if "ends" not in story:
    signal.pause()
"""


@pytest.mark.parametrize(
    ("stories", "reason"),
    [
        pytest.param(["heeds stepped finished"], "completed", id="it said that its work was done"),
        pytest.param(["heeds stepped"], "preempted", id="more steps were to come"),
        pytest.param(["heeds"], "preempted", id="it told nothing, and may have been stopped halfway"),
        pytest.param(["stepped finished"], "preempted", id="it did not end well"),
        pytest.param(["ends", "heeds stepped finished"], "completed", id="one had ended, one was about to"),
        pytest.param(["heeds stepped finished", "heeds stepped"], "preempted", id="a rank was not through"),
    ],
)
def test_what_was_done_before_the_warning_is_done(runs: LocalRuns, stories: list[str], reason: str) -> None:
    attempt = runs.start("python", runs.script("program.py", PROGRAM), *stories, workers=len(stories))
    for rank in range(len(stories)):
        runs.wait_for_text(attempt, "ready", rank=rank)
    ending = [one["pid"] for one in runs.status(attempt)["ranks"] if stories[one["rank"]] == "ends"]
    wait_for(lambda: not any(map(is_running, ending)), "the end of those that end by themselves")
    runs.engine.stop(attempt, grace_s=20.0, kind=StopKind.PREEMPTED)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason == reason, exit
    assert runs.outcome(attempt)["exit_code"] == (0 if reason == "completed" else None)


def test_who_is_cancelled_is_cancelled_all_the_same(runs: LocalRuns) -> None:
    attempt = runs.start("python", runs.script("program.py", PROGRAM), "heeds stepped finished")
    runs.wait_for_text(attempt, "ready")
    runs.engine.stop(attempt, grace_s=20.0)
    exit = runs.wait(attempt).exit
    assert exit is not None
    assert exit.reason == "cancelled"
