"""A clock that is set back by an hour stops nothing for that hour."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.controller.stage import NODE, Stage
from windlass.agent.layout import metrics_spool
from windlass.engines.contract import Observation
from windlass.scheduling.usage import load_usage
from windlass.testing.fake_engine import FakeEngine
from windlass.tracking.store import load_summaries

HOUR_S = 3600.0
SAMPLE = {"cpu_percent": 10.0, "rss_bytes": 1, "peak_rss_bytes": 1, "cpu_seconds": 1.0}


class TalkingEngine(FakeEngine):
    """Whose attempts log into a folder, and are as busy as a test says."""

    folder: Path
    usage: Mapping[str, Any] | None = None

    def poll(self, attempt_ids: Sequence[str]) -> dict[str, Observation]:
        found = super().poll(attempt_ids)
        usage = None if self.usage is None else {"at": self._clock.now(), **SAMPLE, **self.usage}
        return {
            attempt_id: replace(seen, log_dirs=(str(self.folder),), usage=usage) for attempt_id, seen in found.items()
        }


@pytest.fixture
def engine(stage: Stage, tmp_path: Path) -> TalkingEngine:
    engine = TalkingEngine(stage.clock, cluster=stage.cluster)
    engine.folder = tmp_path
    stage.engines["fake"] = engine
    return engine


def test_points_are_still_collected(stage: Stage, engine: TalkingEngine) -> None:
    run_id = stage.submit()
    stage.pass_time()
    stage.pass_time()
    stage.clock.set_back(HOUR_S)
    (engine.folder / metrics_spool(0)).write_text(json.dumps({"t": 5, "s": 1, "m": {"loss": 1.0}}) + "\n")
    stage.pass_time()
    assert stage.service.view(run_id).metrics["loss"].count == 1


def test_nodes_are_still_looked_for(stage: Stage) -> None:
    runs = [stage.submit(resources={"cpus": 3}) for _ in range(2)]
    stage.pass_time(10)
    stage.clock.set_back(HOUR_S)
    stage.cluster.nodes = (NODE, replace(NODE, name="another"))
    stage.pass_time()
    assert "queued" not in [stage.state(run_id) for run_id in runs]


def test_usage_machines_and_what_is_printed_are_still_written(stage: Stage, engine: TalkingEngine) -> None:
    run_id = stage.submit()
    for step in range(20):
        engine.usage = {"printed": {"step": step, "total": 1_000, "at": 100.0 + step}}
        stage.pass_time()
    stage.clock.set_back(HOUR_S)
    engine.usage = {"cpu_percent": 77.0, "printed": {"step": 500, "total": 1_000, "at": 200.0}}
    stage.pass_time()
    view = stage.service.view(run_id)
    with stage.db.read() as tx:
        machines = load_summaries(tx, [run_id])[run_id]
    assert view.usage is not None
    assert view.usage["cpu_percent"] == 77.0
    assert machines["system/cpu_percent"].max == 77.0
    assert view.progress is not None
    assert view.progress.step == 500


def test_what_projects_use_is_still_counted(stage: Stage) -> None:
    stage.submit()
    stage.pass_time()
    stage.pass_time(60)
    stage.clock.set_back(HOUR_S)
    stage.pass_time()
    with stage.db.read() as tx:
        assert {used.at for used in load_usage(tx).values()} == {stage.clock.now()}
