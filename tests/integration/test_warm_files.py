"""A warm rank inherits objects of its supervisor. None may close a file of the script's when it is collected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local_runs import LocalRuns
from windlass.core.exits import ExitReason

SCRIPT = """
import gc, os, quickmodule
assert quickmodule.loaded_in != os.getpid(), "not a warm rank"
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]
gc.collect()
for fd in files:
    os.fstat(fd)
print("all", len(files), "files are open")
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    runs = LocalRuns(tmp_path, preimport=["quickmodule"])
    yield runs
    runs.clean_up()


def test_files_of_a_warm_rank_stay_open(runs: LocalRuns) -> None:
    runs.make_warm("quickmodule")
    attempt = runs.start("python", runs.script("files.py", SCRIPT), workers=3, env=runs.warm_env)
    seen = runs.wait(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED, [runs.log(attempt, rank=rank) for rank in range(3)]
    for rank in range(3):
        assert "all 64 files are open" in runs.log(attempt, rank=rank)
