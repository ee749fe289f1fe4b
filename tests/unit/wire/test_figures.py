"""What JSON has no words for: one spelling, and back."""

from __future__ import annotations

import math

import pytest

from windlass.client.metrics import metrics_of
from windlass.wire.runs import MetricSeries, MetricsView
from windlass.wire.search import FoundRun

VALUES = [math.nan, math.inf, -math.inf, 1.5]


def view() -> MetricsView:
    return MetricsView(series=[MetricSeries(name="loss", steps=[1, 2, 3, 4], values=list(VALUES), at=[0.0] * 4)])


@pytest.mark.parametrize("text", [view().model_dump_json(), str(view().model_dump(mode="json")).replace("'", '"')])
def test_values_of_metrics_come_back_as_they_were(text: str) -> None:
    assert '"NaN", "Infinity", "-Infinity", 1.5' in text.replace('","', '", "').replace(",1", ", 1")
    values = metrics_of(MetricsView.model_validate_json(text))["loss"].values
    assert math.isnan(values[0])
    assert list(values[1:]) == VALUES[1:]


def test_what_older_servers_say_is_read() -> None:
    old = {
        "series": [{"name": "loss", "steps": [1, 2, 3], "values": [None, 1.7976931348623157e308, 2], "at": [0, 0, 0]}]
    }
    values = metrics_of(MetricsView.model_validate(old))["loss"].values
    assert math.isnan(values[0])
    assert list(values[1:]) == [math.inf, 2.0]
    found = {"id": "r", "name": "n", "state": "failed", "project": "p", "params": {}, "tags": {}}
    metrics = FoundRun.model_validate({**found, "metrics": {"a": "nan", "b": "-inf", "c": 1}}).metrics
    assert (math.isnan(metrics["a"]), metrics["b"], metrics["c"]) == (True, -math.inf, 1.0)
