"""How much two filters go together: normalized pointwise mutual information of what they match."""

from __future__ import annotations

import math
from dataclasses import dataclass

_PRIOR = 0.5  # Jeffreys's


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    total: int
    first: int
    second: int
    both: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    counts: Counts
    npmi: float  # from -1, never together, to 1, always; NaN where one matches nothing
    smoothed: float


def correlate(counts: Counts) -> Correlation:
    only_first, only_second = counts.first - counts.both, counts.second - counts.both
    neither = counts.total - counts.first - counts.second + counts.both
    if counts.total <= 0 or 0 in (counts.first, counts.second) or min(only_first, only_second, neither) < 0:
        return Correlation(counts=counts, npmi=math.nan, smoothed=math.nan)
    cells = (counts.both, only_first, only_second, neither)
    plain = -1.0 if counts.both == 0 else _npmi(*cells, prior=0)
    return Correlation(counts=counts, npmi=plain, smoothed=_npmi(*cells, prior=_PRIOR))


def _npmi(both: float, only_first: float, only_second: float, neither: float, *, prior: float) -> float:
    if only_first == only_second == neither == 0:
        return 1.0
    total = both + only_first + only_second + neither + 4 * prior
    first, second, joint = both + only_first + 2 * prior, both + only_second + 2 * prior, both + prior
    gain = math.log(joint) + math.log(total) - math.log(first) - math.log(second)
    return max(-1.0, min(1.0, gain / (math.log(total) - math.log(joint))))
