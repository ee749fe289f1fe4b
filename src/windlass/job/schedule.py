"""Learning rates by step: `warm_cosine`, straight up and then half a cosine down."""

from __future__ import annotations

import math
from collections.abc import Callable


def warm_cosine(lr: float, *, steps: int, warmup: int, last: float) -> Callable[[int], float]:
    """From the number of steps done to the rate of the next one. `last`: where it ends, as a share of `lr`."""

    def rate(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / warmup
        done = (step - warmup) / max(1, steps - warmup)
        return lr * (last + (1 - last) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))

    return rate
