"""A rank that hangs is found, where it was goes on record, and the attempt goes on."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import skip_unless_ci
from tests.integration.local_runs import INTERPRETER_PATH, LocalRuns
from windlass.agent import layout
from windlass.core.exits import ExitReason
from windlass.engines.contract import InPlace

# One of the two is stuck at its fourth step; the other waits for it as in a collective.
STUCK = """
import os, pathlib, time
from windlass import job
def stuck_here():
    time.sleep(600)
def wait_for_peer():
    while True:
        time.sleep(0.05)
for step in range(6):
    if step == 3 and job.attempt == 1 and os.environ["WINDLASS_GENERATION"] == "0":
        stuck_here() if job.rank == 1 else wait_for_peer()
    time.sleep(0.01)
    job.log(step, loss=1.0)
    print("step", step, flush=True)
"""
UNHEARD = """
import time
def silent_here():
    time.sleep(600)
print("up", flush=True)
silent_here()
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path, preimport=("json",))
    yield runs
    runs.clean_up()
    assert runs.processes() == []


@pytest.mark.parametrize("warm", [False, True])
def test_the_stacks_of_all_ranks_are_on_record_before_any_is_ended(runs: LocalRuns, warm: bool) -> None:
    script = runs.script("stuck.py", STUCK)
    attempt = runs.start("python", script, workers=2, hang=2.0, warm=warm)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert (seen.exit.reason, seen.exit.node_rank) == (ExitReason.HANG, 0)
    assert "no step for" in seen.exit.message
    assert "ranks 0, 1 are at step 2" in seen.exit.message
    for rank, function in ((0, "wait_for_peer"), (1, "stuck_here")):
        assert f"in {function}" in runs.log(attempt, rank=rank)
        kept = (runs.node_dir(attempt) / layout.stacks(rank)).read_text()
        assert f"in {function}" in kept
        assert "stacks of process" in kept
    assert seen.usage is not None
    assert seen.usage["progress"]["step"] == 2


def test_a_hang_passes_in_place(runs: LocalRuns) -> None:
    in_place = InPlace(most=3, errors_too=False, key="k")
    attempt = runs.start("python", runs.script("stuck.py", STUCK), workers=2, hang=2.0, in_place=in_place)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED
    [recovery] = seen.recoveries
    assert (recovery["reason"], recovery["step"]) == ("hang", 2)
    assert recovery["detect_s"] >= 2.0


@pytest.mark.parametrize("in_place", [None, InPlace(most=3, errors_too=False, key="k" * 32)])
def test_all_nodes_of_a_gang_say_where_they_are(tmp_path: Path, in_place: InPlace | None) -> None:
    runs = LocalRuns(tmp_path, nodes=2)
    try:
        attempt = runs.start("python", runs.script("stuck.py", STUCK), hang=2.0, in_place=in_place)
        seen = runs.wait(attempt)
        assert seen.exit is not None
        assert seen.exit.reason is (ExitReason.HANG if in_place is None else ExitReason.COMPLETED)
        for rank, function in ((0, "wait_for_peer"), (1, "stuck_here")):
            kept = (runs.node_dir(attempt, rank) / layout.stacks(rank)).read_text()
            assert f"in {function}" in kept
    finally:
        runs.clean_up()
    assert runs.processes() == []


def test_of_a_program_that_tells_nothing_the_kernel_tells_something(runs: LocalRuns) -> None:
    kept = stacks_of_one_that_tells_nothing(runs, path="/usr/bin:/bin")
    assert "thread" in kept.lower()
    assert "unheard.py" not in kept


def test_of_a_program_that_tells_nothing_py_spy_tells_where_it_is(runs: LocalRuns, tmp_path: Path) -> None:
    found = shutil.which("py-spy", path=INTERPRETER_PATH)
    if found is None:
        skip_unless_ci("py-spy", FileNotFoundError("it is not installed"))
    (tmp_path / "py-spy").symlink_to(str(found))
    kept = stacks_of_one_that_tells_nothing(runs, path=f"{tmp_path}:/usr/bin:/bin")
    assert "silent_here (unheard.py:" in kept


def stacks_of_one_that_tells_nothing(runs: LocalRuns, *, path: str) -> str:
    """It is not judged; but when another hangs, its processes are asked too."""
    lone = "import os, runpy\nrunpy.run_path('stuck.py' if os.environ['RANK'] == '1' else 'unheard.py')\n"
    runs.script("unheard.py", UNHEARD)
    runs.script("stuck.py", STUCK)
    attempt = runs.start(
        sys.executable, runs.script("lone.py", lone), workers=2, hang=2.0, warm=False, env={"PATH": path}
    )
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert (seen.exit.reason, seen.exit.rank) == (ExitReason.HANG, 1)
    return (runs.node_dir(attempt) / layout.stacks(0)).read_text()
