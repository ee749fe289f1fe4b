"""The examples of docs/training.md do what the page says: run top to bottom, by one process and by two."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.unit.job.processes import run_processes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[3]


def script() -> str:
    page = (ROOT / "docs" / "training.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    return (
        "\n".join(blocks)
        + "\nassert steps.number == 6, steps.number\nassert not profile.summary or profile.summary.steps == 3\n"
    )


@pytest.mark.parametrize(("processes", "plan"), [(1, ""), (2, "shard=2")])
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, plan: str) -> None:
    monkeypatch.setenv("WINDLASS_PLAN", plan)
    outputs = run_processes(script(), tmp_path, count=processes, timeout_s=300)
    for rank, output in enumerate(outputs):
        assert f"Rank {rank} on" in output  # the profile's table
    said = [json.loads(line) for line in (tmp_path / "metrics-0.jsonl").read_text().splitlines()]
    logged = {name for record in said for name in record.get("m", {})}
    assert {"loss", "grad_norm", "step_s", "data_wait_s", "compute_s", "samples_per_s", "eval_loss"} <= logged
    kinds = [record["a"]["kind"] for record in said if "a" in record]
    assert kinds == ["nan", "diverged"]
    assert (tmp_path / "output" / "profile" / "rank-0.trace.json.gz").exists()
