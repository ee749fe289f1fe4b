"""`windlass metrics`: which are meant, and what is printed of them."""

from __future__ import annotations

import math

import pytest

from windlass.cli.metrics import choose, render_points
from windlass.client.run import Metric
from windlass.core.errors import NotFound

KNOWN = ["acc", "val/loss", "val/acc", "lr[0]"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([], ["val/loss", "acc", "lr[0]", "val/acc"]),
        (["val/*"], ["val/loss", "val/acc"]),
        (["lr[0]", "acc"], ["acc", "lr[0]"]),
    ],
)
def test_metrics_are_chosen_by_name_or_pattern(wanted: list[str], found: list[str]) -> None:
    assert choose(KNOWN, wanted) == found


def test_a_name_that_none_has_is_refused_with_few_of_those_there_are() -> None:
    with pytest.raises(NotFound, match="unknown metric 'los") as refused:
        choose([f"m{number}" for number in range(10_000)], ["los*"])
    assert "and 9,980 more" in str(refused.value)
    assert len(str(refused.value)) < 2_000


def test_points_are_lines_for_other_programs() -> None:
    loss = Metric(name="loss", steps=(None, 3), values=(0.1, math.nan), times=(1.0, 2.5))
    assert render_points([loss]) == ["step\ttime\tvalue", "\t1.000\t0.1", "3\t2.500\tnan"]
    assert render_points([loss, loss])[1] == "loss\t\t1.000\t0.1"
