"""What several processes have whole, or several modules in common, is learned as by one process, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.unit.job.processes import run_processes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def said_by_all(script: str, folder: Path, *, count: int = 2) -> dict[str, str]:
    """By what each line is about; all ranks say the same."""
    first, *others = run_processes(script, folder, count=count)
    lines = [line.split(": ", 1) for line in first.splitlines() if ": " in line]
    for other in others:
        assert [line.split(": ", 1) for line in other.splitlines() if ": " in line] == lines
    return dict(lines)


TENSOR = """
from tests.unit.job.parallel.whole import tell
from windlass import job

job.init()
plan = "tensor=2"
tell("tied", plan, "tied")
tell("tied, head whole", plan, "tied", tensor={"head": None})
tell("tied, both whole", plan, "tied", tensor={"head": None, "embed": None})
"""


def test_tied_weights_under_tensor_are_learned_as_by_one_process_or_refused(tmp_path: Path) -> None:
    said = said_by_all(TENSOR, tmp_path)
    assert said["tied"] == said["tied, both whole"] == "right", said
    assert "embed.weight and head.weight are one parameter" in said["tied, head whole"]
    assert "(by dimension 0 and not at all)" in said["tied, head whole"]
