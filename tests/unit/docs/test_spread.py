"""examples/spread: the same losses under every plan that its head names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.unit.job.processes import run_processes
from windlass.wire.spec import parse_spec

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "spread"


def losses(folder: Path, monkeypatch: pytest.MonkeyPatch, plan: str, processes: int) -> list[float]:
    folder.mkdir()
    monkeypatch.setenv("WINDLASS_PLAN", plan)
    monkeypatch.setenv("WINDLASS_PARAMS", json.dumps({"steps": 40}))
    output = run_processes((EXAMPLE / "train.py").read_text(), folder, count=processes, timeout_s=180)[0]
    return [float(found) for found in re.findall(r"loss (\S+)", output)]


@pytest.mark.parametrize("plan", ["tensor=2", pytest.param("pipeline=2,accumulate=4", marks=pytest.mark.slow)])
def test_the_losses_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    alone = losses(tmp_path / "alone", monkeypatch, "", 1)
    assert len(alone) == 2
    assert alone[1] < alone[0]
    assert losses(tmp_path / "two", monkeypatch, plan, 2) == pytest.approx(alone, rel=1e-3)


def test_its_spec_is_one() -> None:
    spec = parse_spec(yaml.safe_load((EXAMPLE / "spec.yaml").read_text()))
    assert (spec.nproc, str(spec.script)) == (2, "train.py")
