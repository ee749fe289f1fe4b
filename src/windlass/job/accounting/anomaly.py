"""When is a loss or a gradient sick? A rule over the numbers of each step, with a memory of what is usual.

Pure: numbers in, a finding or nothing out. The same numbers on all processes give the same findings on all of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from windlass.core.errors import WindlassError
from windlass.core.plan import OnNan

USUAL_STEPS = 128  # what "usual" is taken from
LEAST_STEPS = 50  # before this many nothing is called unusual: a loss falls fast at first, and gradients with it
CALM_STEPS = 50  # so many healthy steps end an episode; one alert an episode
MOST_OVERFLOWS = 20  # a loss scale halves with each: more in a row are not a matter of scale


class SickStep(WindlassError):
    """Training stopped because of a loss or gradient, as the plan's `on_nan: stop` asks."""

    code = "sick_step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: str  # nan, or exploded
    step: int
    message: str
    new_episode: bool


class Median:
    """The median of the last values, kept in order as they come and go."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, value: float) -> None:
        if len(self._recent) == self._size:
            oldest = self._recent.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
        self._recent.append(value)
        insort(self._ordered, value)

    @property
    def value(self) -> float:
        return self._ordered[len(self._ordered) // 2]


class Watch:
    """Looks at every step once, in order."""

    def __init__(self, explode: float | None) -> None:
        self._explode = explode  # how many times the usual is an explosion; None: nothing is
        self._norms, self._losses = Median(USUAL_STEPS), Median(USUAL_STEPS)
        self._highest_at_first = -math.inf
        self._calm_steps = CALM_STEPS  # since the last sick one
        self._overflows = 0

    def look(self, step: int, *, loss: float | None, grad_norm: float | None, scaled: bool = False) -> Finding | None:
        """`scaled`: the loss is multiplied by a scale that is still being found, so overflows are part of the plan."""
        trouble = self._not_finite(loss, grad_norm, scaled) or self._exploded(loss, grad_norm)
        if trouble is None:
            self._calm_steps += 1
            self._remember(loss, grad_norm)
            return None
        new_episode, self._calm_steps = self._calm_steps >= CALM_STEPS, 0
        kind, words = trouble
        return Finding(kind=kind, step=step, message=f"step {step}: {words}", new_episode=new_episode)

    def _not_finite(self, loss: float | None, grad_norm: float | None, scaled: bool) -> tuple[str, str] | None:
        if loss is not None and not math.isfinite(loss):
            return "nan", f"the loss is {loss}"
        if grad_norm is None or math.isfinite(grad_norm):
            self._overflows = 0
            return None
        self._overflows += 1
        if scaled and self._overflows <= MOST_OVERFLOWS:
            return None
        again = f" for {self._overflows} steps, whatever the loss scale" if scaled else ""
        return "nan", f"the gradient's norm is {grad_norm}{again}"

    def _exploded(self, loss: float | None, grad_norm: float | None) -> tuple[str, str] | None:
        if self._explode is None:
            return None
        if grad_norm is not None and math.isfinite(grad_norm) and len(self._norms) >= LEAST_STEPS:
            usual = self._norms.value
            if grad_norm > self._explode * usual:
                return "exploded", f"the gradient's norm is {grad_norm:.4g}, and {usual:.4g} is usual"
        if loss is not None and len(self._losses) >= LEAST_STEPS:
            usual = self._losses.value
            # A loss near zero varies by large factors: above where it began it has certainly gone wrong.
            if loss > self._explode * max(usual, 0.0) and loss > self._highest_at_first:
                return "exploded", f"the loss is {loss:.4g}, and {usual:.4g} is usual"
        return None

    def _remember(self, loss: float | None, grad_norm: float | None) -> None:
        if grad_norm is not None and math.isfinite(grad_norm):
            self._norms.add(grad_norm)
        if loss is not None:
            if len(self._losses) < LEAST_STEPS:
                self._highest_at_first = max(self._highest_at_first, loss)
            self._losses.add(loss)


def decide_stop(finding: Finding, policy: OnNan) -> SickStep | None:
    """The error that ends the run, if the plan asks for that."""
    if policy is not OnNan.STOP:
        return None
    return SickStep(finding.message, hint="the plan says on_nan=stop; go_on and skip are the other options")
