"""Two things measured side by side, many times: how their ratio lies, how sure that is, and whether a target is met.

What is compared are neighbours in time, by the logarithm of their ratio: what disturbs the machine for a while disturbs
both. The mean leaves out the fifth at each end: a window in which somebody else had the core says nothing. Pure.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

TRIMMED = 0.2


class Verdict(StrEnum):
    MET = "met"
    MISSED = "missed"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """With its 95% interval."""

    value: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.least:.4f} to {self.most:.4f})"


def trimmed_mean(values: Sequence[float], share: float = TRIMMED) -> float:
    """Without the `share` of the values at each end; of a few values, the median."""
    cut = int(len(values) * share)
    return statistics.fmean(sorted(values)[cut : len(values) - cut]) if cut else statistics.median(values)


def ratio_of(groups: Sequence[Sequence[float]], *, draws: int = 2000) -> Ratio:
    """Of ratios, in groups of what was measured together: groups are drawn, then ratios within each."""
    logs = [[math.log(ratio) for ratio in group] for group in groups]
    source = random.Random(0)

    def middle(drawn: Sequence[Sequence[float]]) -> float:
        return statistics.fmean(trimmed_mean(group) for group in drawn)

    found = sorted(
        middle([source.choices(group, k=len(group)) for group in source.choices(logs, k=len(logs))])
        for _ in range(draws)
    )
    return Ratio(
        value=math.exp(middle(logs)),
        least=math.exp(found[int(0.025 * draws)]),
        most=math.exp(found[int(0.975 * draws)]),
    )


def decide_verdict(ratio: Ratio, noise: Ratio, *, target: float) -> Verdict:
    """`noise` is the ratio of two that are the same. Nothing is said of a target that the method cannot tell from 1."""
    if ratio.most < target * min(1.0, noise.least):
        return Verdict.MISSED  # by more than noise can account for, however much of it there is
    if noise.least < target or noise.most > 1 / target:
        return Verdict.CANNOT_TELL
    if ratio.least >= target:
        return Verdict.MET
    return Verdict.MISSED if ratio.most < target else Verdict.CANNOT_TELL
