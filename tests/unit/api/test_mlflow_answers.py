from __future__ import annotations

import json
import math

from windlass.api.mlflow.answers import history_text, run_answer
from windlass.experiments.history import HistoryPoint
from windlass.experiments.types import LARGEST, LatestMetric, ModelOutput, Pair, RunInfo, TrackedRun

INFO = RunInfo(
    id="r1",
    experiment_id=3,
    name="a",
    user="ä",
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


def test_an_answer_has_what_there_is_of_a_run() -> None:
    assert run_answer(TrackedRun(info=INFO))["data"] == {}
    run = TrackedRun(info=INFO, metrics=METRICS[:1], tags=[Pair("t", "v")], model_outputs=[ModelOutput("m-1", 2)])
    answer = run_answer(run)
    assert answer["data"] == {
        "metrics": [{"key": 'l"oss', "value": 0.1, "timestamp": 1000, "step": 2}],
        "tags": [{"key": "t", "value": "v"}],
    }
    assert (answer["inputs"], answer["outputs"]) == ({}, {"model_outputs": [{"model_id": "m-1", "step": 2}]})


def test_infinities_are_the_largest_numbers_and_nan_is_text() -> None:
    metrics = run_answer(TrackedRun(info=INFO, metrics=METRICS))["data"]["metrics"]
    assert [metric["value"] for metric in metrics] == [0.1, "NaN", LARGEST, -LARGEST, 5e-324]


def test_pages_of_a_history_become_one_answer() -> None:
    points = [HistoryPoint("r1", 'l"oss', value, 1_000 * step, step) for step, value in enumerate([1.0, math.nan, 2.0])]
    text = b"".join(history_text([points[:2], [], points[2:]]))
    assert json.loads(text) == {
        "metrics": [
            {"key": 'l"oss', "value": 1.0, "timestamp": 0, "step": 0},
            {"key": 'l"oss', "value": "NaN", "timestamp": 1_000, "step": 1},
            {"key": 'l"oss', "value": 2.0, "timestamp": 2_000, "step": 2},
        ]
    }
    assert json.loads(b"".join(history_text([[], []]))) == {"metrics": []}
