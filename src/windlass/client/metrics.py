"""Metrics of a run, as the SDK hands them out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.wire.runs import MetricsView

_LARGEST = 1.7e308  # an older server has no infinities, nor NaN: beyond this it means one, and null is the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric's points in the order of logging. `None` as a step: logged without one."""

    name: str
    steps: tuple[int | None, ...]
    values: tuple[float, ...]
    times: tuple[float, ...]

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None


def metrics_of(view: MetricsView) -> dict[str, Metric]:
    return {
        series.name: Metric(
            name=series.name,
            steps=tuple(series.steps),
            values=tuple(_number(value) for value in series.values),
            times=tuple(series.at),
        )
        for series in view.series
    }


def _number(value: float | None) -> float:
    if value is None:
        return math.nan
    return math.copysign(math.inf, value) if abs(value) > _LARGEST else value
