"""examples/elastic: its spec is one, and five processes have the losses of one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.unit.job.processes import run_processes
from windlass.wire.spec import parse_spec

EXAMPLE = Path(__file__).parents[3] / "examples" / "elastic"


def test_its_spec_is_one() -> None:
    spec = parse_spec(yaml.safe_load((EXAMPLE / "spec.yaml").read_text()))
    assert spec.elastic is not None
    assert (spec.resources.nodes, spec.elastic.max_nodes) == (1, 4)


@pytest.mark.torch
@pytest.mark.slow
def test_the_losses_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_PARAMS", json.dumps({"steps": 100}))
    found = []
    for count in (1, 5):
        folder = tmp_path / str(count)
        folder.mkdir()
        output = run_processes((EXAMPLE / "train.py").read_text(), folder, count=count)[0]
        found.append([float(loss) for loss in re.findall(r"loss (\S+)", output)])
    assert len(found[0]) == 2
    assert found[1] == pytest.approx(found[0], rel=1e-3)
