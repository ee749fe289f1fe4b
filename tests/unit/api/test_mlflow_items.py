from __future__ import annotations

import math
from typing import Any

import pytest

from windlass.api.mlflow.items import read_datasets, read_metrics, read_models, read_pairs
from windlass.core.errors import InvalidInput
from windlass.experiments.types import Metric, ModelOutput, Pair


def test_metrics_are_read_as_protobuf_reads_them() -> None:
    given = [
        {"key": "a", "value": 0.5, "timestamp": 1, "step": 2},
        {"key": "b", "value": 1, "timestamp": "3"},
        {"key": "c", "value": "NaN", "timestamp": 4.0, "step": None},
        {"key": "d", "value": "Infinity", "timestamp": 5, "step": -1, "model_id": "m-1", "dataset_name": ""},
    ]
    a, b, c, d = read_metrics(given)
    assert (a, b) == (Metric("a", 0.5, 1, 2), Metric("b", 1.0, 3, 0))
    assert math.isnan(c.value)
    assert c[2:] == (4, 0, None, None, None)
    assert d == Metric("d", math.inf, 5, -1, "m-1", None, None)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"value": 1.0, "timestamp": 1}, r"Missing value for required parameter 'metrics\[0\]\.key'"),
        ({"key": "a", "timestamp": 1}, r"'metrics\[0\]\.value'"),
        ({"key": "a", "value": 1.0}, r"'metrics\[0\]\.timestamp'"),
        ({"key": "a", "value": "x", "timestamp": 1}, "for parameter 'metrics' supplied"),
        ({"key": "a", "value": True, "timestamp": 1}, "for parameter 'metrics' supplied"),
        ({"key": "a", "value": 1.0, "timestamp": 1.5}, "for parameter 'metrics' supplied"),
        ({"key": "a", "value": 1.0, "timestamp": 1, "step": 2**63}, "for parameter 'metrics' supplied"),
        ({"key": 3, "value": 1.0, "timestamp": 1}, "for parameter 'metrics' supplied"),
        ("x", "for parameter 'metrics' supplied"),
    ],
)
def test_other_metrics_are_refused(item: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_metrics([item])


@pytest.mark.parametrize(
    "other",
    [
        {"key": "", "value": 1.0, "timestamp": 1, "step": 0},
        {"key": "b", "value": 1.0, "timestamp": 2**63, "step": 0},
        {"key": "b", "value": 1.0, "timestamp": 1, "step": -(2**63) - 1},
        {"key": "b", "value": 1.0, "timestamp": True, "step": 0},
    ],
)
def test_one_bad_metric_among_usual_ones_is_refused(other: Any) -> None:
    usual = {"key": "a", "value": 0.5, "timestamp": 1, "step": 2}
    with pytest.raises(InvalidInput):
        read_metrics([usual, other, usual])


def test_a_metric_of_a_model_among_usual_ones_keeps_its_model() -> None:
    usual = {"key": "a", "value": 0.5, "timestamp": 1, "step": 2}
    assert read_metrics([usual, {**usual, "model_id": "m-1"}]) == [
        Metric("a", 0.5, 1, 2),
        Metric("a", 0.5, 1, 2, "m-1"),
    ]
    assert read_metrics([]) == []


def test_pairs_may_lack_their_value() -> None:
    assert read_pairs([{"key": "a"}, {"key": "b", "value": "c"}], "tags", keyed=True) == [Pair("a", ""), Pair("b", "c")]
    with pytest.raises(InvalidInput, match=r"'tags\[0\]\.key'"):
        read_pairs([{"value": "c"}], "tags", keyed=True)
    with pytest.raises(InvalidInput, match="for parameter 'tags' supplied"):
        read_pairs([{"key": "a", "value": 5}], "tags")


def test_models_and_datasets() -> None:
    assert read_models([{"model_id": "m-1"}, {"model_id": "m-2", "step": "4"}]) == [
        ModelOutput("m-1", 0),
        ModelOutput("m-2", 4),
    ]
    [one] = read_datasets([{"dataset": {"name": "d", "digest": "1"}, "tags": [{"key": "a", "value": "b"}]}])
    assert (one.dataset.name, one.dataset.source, one.tags) == ("d", "", [Pair("a", "b")])
    with pytest.raises(InvalidInput, match="Dataset cannot be None"):
        read_datasets([{"tags": []}])
    with pytest.raises(InvalidInput, match="for parameter 'models' supplied"):
        read_models([{"step": 1}])
