from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from windlass.api.mlflow.answers import history_text, run_answer, runs_text
from windlass.experiments.history import HistoryPoint
from windlass.experiments.types import LARGEST, LatestMetric, ModelOutput, Pair, RunInfo, TrackedRun

INFO = RunInfo(
    id="r1",
    experiment_id=3,
    name='a "data":{ b',
    user="ä\ud800",
    status="RUNNING",
    start_ms=5,
    end_ms=None,
    stage="active",
    artifact_uri="mlflow-artifacts:/3/r1/artifacts",
)
METRICS = [
    LatestMetric('l"oss', 0.1, 1000, 2),
    LatestMetric("nan", math.nan, 1, 0),
    LatestMetric("inf", math.inf, 1, -1),
    LatestMetric("least", -math.inf, 1, 0),
    LatestMetric("tiny", 5e-324, 1, 0),
]


@pytest.mark.parametrize(
    "run",
    [
        TrackedRun(info=INFO),
        TrackedRun(info=INFO, metrics=METRICS),
        TrackedRun(info=INFO, metrics=METRICS[:1], params=[Pair("p", '"data":{')], tags=[Pair("t", "")]),
        TrackedRun(info=INFO, tags=[Pair("t", "v")], model_outputs=[ModelOutput("m-1", 2)]),
    ],
)
def test_a_page_says_of_a_run_what_the_run_says_of_itself(run: TrackedRun) -> None:
    other = replace(run, info=replace(INFO, id="r2"))
    page = json.loads(runs_text([run, other], "more").decode("utf-8", "surrogatepass"))
    assert page == {"runs": [run_answer(run), run_answer(other)], "next_page_token": "more"}


def test_a_page_without_runs_is_empty() -> None:
    assert runs_text([], None) == b"{}"


def test_infinities_are_the_largest_numbers_and_nan_is_text() -> None:
    metrics = run_answer(TrackedRun(info=INFO, metrics=METRICS))["data"]["metrics"]
    assert [metric["value"] for metric in metrics] == [0.1, "NaN", LARGEST, -LARGEST, 5e-324]


def test_pages_of_a_history_become_one_answer() -> None:
    points = [HistoryPoint("r1", 'l"oss', value, 1_000 * step, step) for step, value in enumerate([1.0, math.nan, 2.0])]
    text = "".join(history_text([points[:2], [], points[2:]]))
    assert json.loads(text) == {
        "metrics": [
            {"key": 'l"oss', "value": 1.0, "timestamp": 0, "step": 0},
            {"key": 'l"oss', "value": "NaN", "timestamp": 1_000, "step": 1},
            {"key": 'l"oss', "value": 2.0, "timestamp": 2_000, "step": 2},
        ]
    }
    assert json.loads("".join(history_text([[], []]))) == {"metrics": []}
