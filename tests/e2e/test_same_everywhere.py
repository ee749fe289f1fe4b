"""One training run, four ranks on two nodes, one of which is killed half-way: the same end and the same record on every
engine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.sites import Installation, LocalSite, Site
from tests.integration.away import await_that
from windlass.client import Run

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny_lm"
PARAMS = {"steps": 40, "batch": 4, "width": 32, "layers": 1, "save_every": 10}


@pytest.fixture(scope="session")
def undisturbed_loss(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Of the same run, on one node, with nobody killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    installation = Installation(folder, LocalSite())
    try:
        with installation.client() as client:
            run = submit(client, folder)
            return final_loss(run.wait(timeout=200))
    finally:
        installation.close()


def submit(client: Any, folder: Path, **params: Any) -> Run:
    saves = folder / "saves"
    saves.mkdir(exist_ok=True)
    return client.submit(  # type: ignore[no-any-return]
        script="train.py",
        code=EXAMPLE,
        nproc=2,
        resources={"nodes": 2, "cpus": 1},
        params={**PARAMS, "save_to": str(saves), **params},
        seed=1,
        # Nodes set up like this machine: the same interpreter, wherever they look for it.
        env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        name="tiny-lm",
    )


def final_loss(run: Run) -> float:
    assert run.state == "succeeded", [line.text for line in run.logs()]
    return run.metrics()["held_out_loss"].last


def test_a_killed_node_changes_nothing_but_the_time(
    installation: Installation, site: Site, tmp_path: Path, undisturbed_loss: float
) -> None:
    with installation.client() as client:
        run = submit(client, tmp_path, pace=0.2)
        saved = tmp_path / "saves" / "last.pt"
        await_that(saved.exists, lambda: str(list(run.logs())), timeout_s=120)
        await_that(lambda: "loss" in run.metrics(), lambda: "no step is on record", timeout_s=30)
        [first] = run.attempts()
        site.kill_node(first)
        run.wait(timeout=200)

        assert final_loss(run) == pytest.approx(undisturbed_loss, abs=1e-6)
        attempts = run.attempts()
        assert [attempt.exit.reason for attempt in attempts if attempt.exit] == ["lost", "completed"]
        assert all(attempt.engine == site.type and len(attempt.nodes) == 2 for attempt in attempts)
        lines = list(run.logs())
        assert {line.attempt for line in lines} == {1, 2}
        assert {line.rank for line in lines if line.attempt == 1} >= {0}
        assert any(line.attempt == 2 and line.text.startswith("going on after step") for line in lines)
        losses = run.metrics()["loss"]
        assert losses.steps[-1] == PARAMS["steps"]
        # Some clusters warn of a loss, and a cluster's node that is gone is set aside for a while.
        kinds = [event.kind for event in run.events() if event.kind not in ("preempting", "set_aside")]
        assert kinds == [
            *("submitted", "placed", "started", "attempt_ended"),
            *("retrying", "placed", "started", "recovered", "attempt_ended", "succeeded"),
        ]
        assert run.view.environment
        assert run.view.usage
        assert run.view.cost.cpu_hours > 0
